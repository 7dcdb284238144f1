//! Metric families and their text form, as Prometheus and the Go client write it: families by name,
//! labels by name, numbers in Go's shortest form. A library would impose its own names (`_total`,
//! units); ours are fixed by the queries of existing dashboards.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The values of a family's labels, in the family's order.
pub(crate) type Values<const N: usize> = [Cow<'static, str>; N];

/// A family's name, help text and label names.
#[derive(Debug)]
pub(crate) struct Family<const N: usize> {
    pub(crate) name: &'static str,
    pub(crate) help: &'static str,
    pub(crate) labels: [&'static str; N],
}

/// Counters, which only grow.
#[derive(Debug)]
pub(crate) struct Counters<const N: usize> {
    family: Family<N>,
    series: Mutex<BTreeMap<Values<N>, u64>>,
}

impl<const N: usize> Counters<N> {
    pub(crate) const fn new(name: &'static str, help: &'static str, labels: [&'static str; N]) -> Self {
        Self { family: Family { name, help, labels }, series: Mutex::new(BTreeMap::new()) }
    }

    /// Adds to a counter. With 0, the series appears before the first event.
    pub(crate) fn add(&self, values: Values<N>, count: u64) {
        *lock(&self.series).entry(values).or_default() += count;
    }

    pub(crate) fn write(&self, text: &mut Text) {
        let series = lock(&self.series);
        let samples = series.iter().map(|(values, count)| (values, *count as f64));
        text.numbers(&self.family, "counter", samples);
    }
}

/// A histogram.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Histogram<const BUCKETS: usize> {
    /// One count per bound, and one for everything above the last.
    counts: [u64; BUCKETS],
    above: u64,
    pub(crate) sum: f64,
}

impl<const BUCKETS: usize> Default for Histogram<BUCKETS> {
    fn default() -> Self {
        Self { counts: [0; BUCKETS], above: 0, sum: 0.0 }
    }
}

impl<const BUCKETS: usize> Histogram<BUCKETS> {
    pub(crate) fn observe(&mut self, bounds: &[f64; BUCKETS], value: f64) {
        match self.counts.get_mut(bounds.partition_point(|bound| *bound < value)) {
            Some(count) => *count += 1,
            None => self.above += 1,
        }
        self.sum += value;
    }
}

/// Histograms with the same bounds.
#[derive(Debug)]
pub(crate) struct Histograms<const N: usize, const BUCKETS: usize> {
    family: Family<N>,
    bounds: &'static [f64; BUCKETS],
    series: Mutex<BTreeMap<Values<N>, Histogram<BUCKETS>>>,
}

impl<const N: usize, const BUCKETS: usize> Histograms<N, BUCKETS> {
    pub(crate) const fn new(
        name: &'static str,
        help: &'static str,
        labels: [&'static str; N],
        bounds: &'static [f64; BUCKETS],
    ) -> Self {
        Self { family: Family { name, help, labels }, bounds, series: Mutex::new(BTreeMap::new()) }
    }

    pub(crate) fn observe(&self, values: Values<N>, value: f64) {
        lock(&self.series).entry(values).or_default().observe(self.bounds, value);
    }

    pub(crate) fn write(&self, text: &mut Text) {
        text.histograms(&self.family, self.bounds, lock(&self.series).iter());
    }
}

/// Locks a map of numbers, which a panic elsewhere leaves valid.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A page of metrics being built. Families may be written in any order.
#[derive(Debug, Default)]
pub(crate) struct Text {
    families: BTreeMap<&'static str, String>,
}

impl Text {
    /// Writes a family of plain numbers; nothing without any series.
    pub(crate) fn numbers<'a, const N: usize>(
        &mut self,
        family: &Family<N>,
        kind: &str,
        samples: impl IntoIterator<Item = (&'a Values<N>, f64)>,
    ) {
        let mut body = String::new();
        for (values, number) in samples {
            sample(&mut body, family.name, "", &pairs(family, values), number);
        }
        self.put(family, kind, body);
    }

    /// Writes one number without labels.
    pub(crate) fn number(&mut self, name: &'static str, help: &'static str, kind: &str, number: f64) {
        self.numbers(&Family { name, help, labels: [] }, kind, [(&[], number)]);
    }

    pub(crate) fn histograms<'a, const N: usize, const BUCKETS: usize>(
        &mut self,
        family: &Family<N>,
        bounds: &[f64; BUCKETS],
        series: impl IntoIterator<Item = (&'a Values<N>, &'a Histogram<BUCKETS>)>,
    ) {
        let mut body = String::new();
        for (values, histogram) in series {
            let labels = pairs(family, values);
            let mut total = 0;
            let bounds = bounds.iter().copied().chain([f64::INFINITY]);
            for (bound, count) in bounds.zip(histogram.counts.iter().chain([&histogram.above])) {
                total += count;
                let bound = number_text(bound);
                let mut labels = labels.clone();
                // Last, whatever its name, as in the Go client.
                labels.push(("le", &bound));
                sample(&mut body, family.name, "_bucket", &labels, total as f64);
            }
            sample(&mut body, family.name, "_sum", &labels, histogram.sum);
            sample(&mut body, family.name, "_count", &labels, total as f64);
        }
        self.put(family, "histogram", body);
    }

    fn put<const N: usize>(&mut self, family: &Family<N>, kind: &str, body: String) {
        if body.is_empty() {
            return;
        }
        let Family { name, help, .. } = family;
        let head = format!("# HELP {name} {help}\n# TYPE {name} {kind}\n");
        self.families.insert(name, head + &body);
    }

    pub(crate) fn finish(self) -> String {
        self.families.into_values().collect()
    }
}

fn pairs<'a, const N: usize>(family: &Family<N>, values: &'a Values<N>) -> Vec<(&'static str, &'a str)> {
    let mut pairs: Vec<(&'static str, &str)> =
        family.labels.iter().copied().zip(values.iter().map(AsRef::as_ref)).collect();
    pairs.sort_unstable();
    pairs
}

fn sample(body: &mut String, name: &str, suffix: &str, labels: &[(&str, &str)], number: f64) {
    body.push_str(name);
    body.push_str(suffix);
    for (index, (key, value)) in labels.iter().enumerate() {
        body.push(if index == 0 { '{' } else { ',' });
        let escaped = value.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n");
        // Writing to a string cannot fail.
        let _ = write!(body, "{key}=\"{escaped}\"");
    }
    if !labels.is_empty() {
        body.push('}');
    }
    let _ = writeln!(body, " {}", number_text(number));
}

/// Formats a number like Go's shortest `%g`.
fn number_text(number: f64) -> String {
    if number.is_infinite() {
        return if number > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    let scientific = format!("{number:e}");
    match scientific.split_once('e').map(|(digits, exponent)| (digits, exponent.parse::<i32>())) {
        Some((digits, Ok(exponent))) if !(-4..6).contains(&exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.abs())
        }
        _ => number.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::{Counters, Histograms, Text, number_text};

    #[test]
    fn numbers_look_like_those_of_go() {
        let cases = [
            (0.0, "0"),
            (1.0, "1"),
            (0.005, "0.005"),
            (240_000.0, "240000"),
            (1_000_000.0, "1e+06"),
            (24_698_880.0, "2.469888e+07"),
            (1e-8, "1e-08"),
            (0.0001, "0.0001"),
            (9.999999999999999e-6, "9.999999999999999e-06"),
            (f64::INFINITY, "+Inf"),
            (f64::NAN, "NaN"),
        ];
        for (number, text) in cases {
            assert_eq!(number_text(number), text);
        }
    }

    #[test]
    fn a_page_is_sorted_escaped_and_cumulative() {
        let latency: Histograms<2, 2> =
            Histograms::new("b_seconds", "How long.", ["verb", "host"], &[0.5, 1.0]);
        latency.observe(["GET".into(), "h\"\\\n".into()], 0.5);
        latency.observe(["GET".into(), "h\"\\\n".into()], 3.0);
        let total: Counters<1> = Counters::new("a_total", "How many.", ["code"]);
        total.add(["200".into()], 2);
        total.add(["404".into()], 0);
        let nothing: Counters<1> = Counters::new("c_total", "Never.", ["code"]);
        let mut text = Text::default();
        latency.write(&mut text);
        total.write(&mut text);
        nothing.write(&mut text);
        let expected = r#"# HELP a_total How many.
# TYPE a_total counter
a_total{code="200"} 2
a_total{code="404"} 0
# HELP b_seconds How long.
# TYPE b_seconds histogram
b_seconds_bucket{host="h\"\\\n",verb="GET",le="0.5"} 1
b_seconds_bucket{host="h\"\\\n",verb="GET",le="1"} 1
b_seconds_bucket{host="h\"\\\n",verb="GET",le="+Inf"} 2
b_seconds_sum{host="h\"\\\n",verb="GET"} 3.5
b_seconds_count{host="h\"\\\n",verb="GET"} 2
"#;
        assert_eq!(text.finish(), expected);
    }
}
