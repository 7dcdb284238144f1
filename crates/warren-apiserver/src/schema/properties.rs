//! The named fields of an object's schema.

use std::sync::Arc;

use super::Schema;

/// Fields sorted by name. Each walk of an object looks its fields up here. Comparing a few names
/// costs less than hashing one, and a list takes less memory than a table.
#[derive(Debug, Default)]
pub(crate) struct Properties(Vec<(Box<str>, Arc<Schema>)>);

impl Properties {
    pub fn get(&self, name: &str) -> Option<&Arc<Schema>> {
        self.position(name).ok().map(|index| &self.0[index].1)
    }

    pub fn contains_key(&self, name: &str) -> bool {
        self.position(name).is_ok()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a field or replaces its schema.
    pub fn insert(&mut self, name: Box<str>, schema: Arc<Schema>) {
        match self.position(&name) {
            Ok(index) => self.0[index].1 = schema,
            Err(index) => self.0.insert(index, (name, schema)),
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &Arc<Schema>)> {
        self.0.iter().map(|(name, schema)| (&**name, schema))
    }

    fn position(&self, name: &str) -> Result<usize, usize> {
        self.0.binary_search_by(|(known, _)| (**known).cmp(name))
    }
}

impl FromIterator<(Box<str>, Arc<Schema>)> for Properties {
    fn from_iter<I: IntoIterator<Item = (Box<str>, Arc<Schema>)>>(fields: I) -> Properties {
        let mut properties = Properties::default();
        fields.into_iter().for_each(|(name, schema)| properties.insert(name, schema));
        properties.0.shrink_to_fit();
        properties
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::Properties;
    use crate::schema::Schema;

    #[test]
    fn fields_are_found_whatever_order_they_came_in() {
        let schema = |nullable| Arc::new(Schema { nullable, ..Schema::default() });
        let names = ["spec", "apiVersion", "kind", "metadata", "status", ""];
        let mut properties: Properties = names.iter().map(|name| ((*name).into(), schema(false))).collect();
        properties.insert("kind".into(), schema(true));
        assert!(names.iter().all(|name| properties.contains_key(name)));
        assert!(properties.get("kind").is_some_and(|found| found.nullable));
        assert!(properties.get("spec").is_some_and(|found| !found.nullable));
        assert!(properties.get("zone").is_none() && !properties.contains_key("speck"));
        assert_eq!(properties.iter().count(), names.len());
        assert!(Properties::default().is_empty());
    }
}
