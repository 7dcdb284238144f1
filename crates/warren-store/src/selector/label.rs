//! Label selectors.

use super::SelectorError;

/// A label selector: every requirement must hold. The empty selector matches everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LabelSelector(Vec<Requirement>);

/// One term of a label selector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Requirement {
    /// `key`
    Exists(String),
    /// `!key`
    Absent(String),
    /// `key = value`, `key in (a, b)`
    In(String, Vec<String>),
    /// `key != value`, `key notin (a, b)`. Also true without the label, as in Kubernetes.
    NotIn(String, Vec<String>),
    /// `key > number`
    GreaterThan(String, i64),
    /// `key < number`
    LessThan(String, i64),
}

impl LabelSelector {
    /// Parses the query parameter, for instance `app=web,tier in (a,b),!old`.
    pub fn parse(text: &str) -> Result<LabelSelector, SelectorError> {
        let mut parser = Parser { rest: text.trim_start() };
        let mut requirements = Vec::new();
        if parser.rest.starts_with(',') {
            return Err(SelectorError("found ',', expected: !, identifier, or 'end of string'".to_owned()));
        }
        while !parser.rest.is_empty() {
            requirements.push(parser.requirement()?);
            if parser.rest.is_empty() {
                break;
            }
            if !parser.take(",") {
                return Err(parser.unexpected("found", "',' or 'end of string'"));
            }
            if parser.rest.is_empty() {
                return Err(SelectorError("found '', expected: identifier after ','".to_owned()));
            }
        }
        Ok(LabelSelector(requirements))
    }

    /// Creates a selector from requirements.
    pub fn new(requirements: Vec<Requirement>) -> LabelSelector {
        LabelSelector(requirements)
    }

    /// Returns true if it matches everything.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns true if the labels, given as a lookup function, satisfy every requirement.
    pub fn matches<'a>(&self, label: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.0.iter().all(|requirement| match requirement {
            Requirement::Exists(key) => label(key).is_some(),
            Requirement::Absent(key) => label(key).is_none(),
            Requirement::In(key, values) => label(key).is_some_and(|value| values.iter().any(|v| v == value)),
            Requirement::NotIn(key, values) => {
                label(key).is_none_or(|value| !values.iter().any(|v| v == value))
            }
            Requirement::GreaterThan(key, bound) => number(label(key)).is_some_and(|value| value > *bound),
            Requirement::LessThan(key, bound) => number(label(key)).is_some_and(|value| value < *bound),
        })
    }
}

fn number(value: Option<&str>) -> Option<i64> {
    value.and_then(|value| value.parse().ok())
}

struct Parser<'a> {
    rest: &'a str,
}

impl<'a> Parser<'a> {
    fn requirement(&mut self) -> Result<Requirement, SelectorError> {
        if self.take("!") {
            return Ok(Requirement::Absent(self.key()?));
        }
        let key = self.key()?;
        if self.rest.is_empty() || self.rest.starts_with(',') {
            return Ok(Requirement::Exists(key));
        }
        if self.take("!=") {
            let value = self.exact_value(&key)?;
            return Ok(Requirement::NotIn(key, vec![value]));
        }
        if self.take("==") || self.take("=") {
            let value = self.exact_value(&key)?;
            return Ok(Requirement::In(key, vec![value]));
        }
        if self.take(">") {
            return Ok(Requirement::GreaterThan(key, self.integer()?));
        }
        if self.take("<") {
            return Ok(Requirement::LessThan(key, self.integer()?));
        }
        match self.word() {
            "in" => {
                let values = self.set(&key)?;
                Ok(Requirement::In(key, values))
            }
            "notin" => {
                let values = self.set(&key)?;
                Ok(Requirement::NotIn(key, values))
            }
            word => Err(SelectorError(format!(
                "unable to parse requirement: found '{word}', expected: in, notin, =, ==, !=, gt, lt"
            ))),
        }
    }

    /// Parses the single value after an operator.
    fn exact_value(&mut self, key: &str) -> Result<String, SelectorError> {
        if self.rest.starts_with(['=', '!', '<', '>', '(', ')']) {
            return Err(self.unexpected("unable to parse requirement: found", "identifier"));
        }
        self.value(key)
    }

    fn set(&mut self, key: &str) -> Result<Vec<String>, SelectorError> {
        if !self.take("(") {
            // This is the only message of the grammar without a comma.
            let found = self.found();
            return Err(SelectorError(format!("unable to parse requirement: found '{found}' expected: '('")));
        }
        if self.rest.is_empty() {
            return Err(self.unexpected("unable to parse requirement: found", "',', ')' or identifier"));
        }
        let mut values = vec![self.value(key)?];
        while self.take(",") {
            values.push(self.value(key)?);
        }
        if self.take(")") {
            Ok(values)
        } else {
            Err(self.unexpected("unable to parse requirement: found", "',' or ')'"))
        }
    }

    fn key(&mut self) -> Result<String, SelectorError> {
        let word = self.word();
        let (prefix, name) =
            word.rsplit_once('/').map_or((None, word), |(prefix, name)| (Some(prefix), name));
        let good =
            !name.is_empty() && name.len() <= 63 && prefix.is_none_or(|p| !p.is_empty() && p.len() <= 253);
        if !good || !edges_are_alphanumeric(name) {
            return Err(SelectorError(format!(
                "unable to parse requirement: <nil>: Invalid value: {word:?}: name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
            )));
        }
        Ok(word.to_owned())
    }

    fn value(&mut self, key: &str) -> Result<String, SelectorError> {
        let word = self.word();
        if word.len() > 63 || !(word.is_empty() || edges_are_alphanumeric(word)) || word.contains('/') {
            return Err(SelectorError(format!(
                "unable to parse requirement: values[0][{key}]: Invalid value: {word:?}: a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
            )));
        }
        Ok(word.to_owned())
    }

    fn integer(&mut self) -> Result<i64, SelectorError> {
        let word = self.word();
        word.parse().map_err(|_| {
            SelectorError(format!("unable to parse requirement: values[0]: Invalid value: {word:?}: for 'Gt', 'Lt' operators, the value must be an integer"))
        })
    }

    fn word(&mut self) -> &'a str {
        let end = self
            .rest
            .find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/')))
            .unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest.trim_start();
        word
    }

    fn take(&mut self, token: &str) -> bool {
        match self.rest.strip_prefix(token) {
            Some(rest) => {
                self.rest = rest.trim_start();
                true
            }
            None => false,
        }
    }

    fn unexpected(&self, prefix: &str, wanted: &str) -> SelectorError {
        SelectorError(format!("{prefix} '{}', expected: {wanted}", self.found()))
    }

    /// Returns the next word or sign.
    fn found(&self) -> &'a str {
        match (Parser { rest: self.rest }).word() {
            "" => self.rest.chars().next().map_or("", |sign| &self.rest[..sign.len_utf8()]),
            word => word,
        }
    }
}

fn edges_are_alphanumeric(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_alphanumeric())
        && word.ends_with(|c: char| c.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests {
    use super::LabelSelector;

    fn selects(selector: &str, labels: &[(&'static str, &'static str)]) -> bool {
        let selector = LabelSelector::parse(selector).unwrap();
        selector.matches(|key| labels.iter().find(|(k, _)| *k == key).map(|(_, v)| *v))
    }

    #[test]
    fn requirements_follow_the_kubernetes_grammar() {
        let web = [("app", "web"), ("tier", "a"), ("example.com/n", "7")];
        for (selector, expected) in [
            ("", true),
            ("app", true),
            ("!app", false),
            ("!old", true),
            ("app=web", true),
            ("app==web,tier=a", true),
            ("app = web , tier = a", true),
            ("app!=web", false),
            ("missing!=web", true),
            ("tier in (a, b)", true),
            ("tier notin (a,b)", false),
            ("missing notin (a)", true),
            ("tier in ()", false),
            ("example.com/n>6", true),
            ("example.com/n<7", false),
            ("app=", false),
        ] {
            assert_eq!(selects(selector, &web), expected, "{selector}");
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for selector in
            ["=a", "a in", "a in (", "a in (b", "a like b", "a=b c", "a,", "a>x", "-a=b", "a=b/c", "a,,b"]
        {
            assert!(LabelSelector::parse(selector).is_err(), "{selector}");
        }
    }
}
