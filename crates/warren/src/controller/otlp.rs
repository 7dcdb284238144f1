//! Configures the export of spans, from the environment variables that every OpenTelemetry exporter
//! reads.

use std::time::Duration;

use anyhow::{Context as _, bail};
use http::{HeaderMap, HeaderName, HeaderValue, Uri};
use warren_controllers::telemetry::{OtlpConfig, OtlpProtocol, Sampling};

/// The defaults of the OpenTelemetry specification.
const GRPC_ENDPOINT: &str = "http://localhost:4317";
const HTTP_ENDPOINT: &str = "http://localhost:4318";
const TIMEOUT: Duration = Duration::from_secs(10);

/// Reads the variables; `get` looks one up.
pub fn config(get: impl Fn(&str) -> Option<String>) -> anyhow::Result<OtlpConfig> {
    // Variables for traces override those for all signals.
    let lookup = |name: &str| {
        let named =
            ["OTEL_EXPORTER_OTLP_TRACES_", "OTEL_EXPORTER_OTLP_"].map(|prefix| format!("{prefix}{name}"));
        named
            .into_iter()
            .find_map(|name| get(&name).filter(|value| !value.is_empty()).map(|value| (name, value)))
    };
    let protocol = match lookup("PROTOCOL") {
        None => OtlpProtocol::Grpc,
        Some((name, value)) => match value.as_str() {
            "grpc" => OtlpProtocol::Grpc,
            "http/protobuf" => OtlpProtocol::HttpProtobuf,
            _ => bail!("`{name}` is `{value}`; spans are sent as `grpc` or `http/protobuf`"),
        },
    };
    let default = if protocol == OtlpProtocol::Grpc { GRPC_ENDPOINT } else { HTTP_ENDPOINT };
    let (name, endpoint) = lookup("ENDPOINT").unwrap_or(("the default".to_owned(), default.to_owned()));
    let endpoint = match endpoint.contains("://") {
        true => endpoint,
        // Without a scheme it uses TLS, unless a variable disables it.
        false => {
            let insecure = lookup("INSECURE").is_some_and(|(_, value)| value.eq_ignore_ascii_case("true"));
            format!("{}://{endpoint}", if insecure { "http" } else { "https" })
        }
    };
    // An endpoint for traces is a complete address; below a general endpoint, each signal has a
    // path of its own.
    let endpoint = match protocol == OtlpProtocol::HttpProtobuf && !name.contains("_TRACES_") {
        true => format!("{}/v1/traces", endpoint.trim_end_matches('/')),
        false => endpoint,
    };
    let endpoint: Uri =
        endpoint.parse().with_context(|| format!("read the collector's address in {name}"))?;
    let mut headers = HeaderMap::new();
    if let Some((name, value)) = lookup("HEADERS") {
        for (key, value) in pairs(&name, &value)? {
            let wrong = || wrong_pairs(&name);
            let key: HeaderName = key.to_lowercase().parse().with_context(wrong)?;
            let mut value: HeaderValue = value.parse().with_context(wrong)?;
            value.set_sensitive(true);
            headers.insert(key, value);
        }
    }
    let timeout = match lookup("TIMEOUT") {
        None => TIMEOUT,
        Some((name, value)) => Duration::from_millis(
            value.parse().with_context(|| format!("read the milliseconds in `{name}`"))?,
        ),
    };
    let certificate_authority = match lookup("CERTIFICATE") {
        None => None,
        Some((name, path)) => Some(
            std::fs::read(&path).with_context(|| format!("read `{path}`, the certificate in `{name}`"))?,
        ),
    };
    // By OpenTelemetry's rules, invalid values of these variables are ignored.
    let ignore = |error: anyhow::Error| tracing::warn!(error = format!("{error:#}"), "ignored");
    let sampling = sampling(&get).map_err(ignore).unwrap_or_default();
    let attributes = attributes(&get).map_err(ignore).unwrap_or_default();
    Ok(OtlpConfig { endpoint, protocol, headers, timeout, certificate_authority, sampling, attributes })
}

/// Returns the sampling. By default all spans of traces that begin here are sent, and of others
/// those whose parents are sent.
fn sampling(get: impl Fn(&str) -> Option<String>) -> anyhow::Result<Sampling> {
    const SAMPLER: &str = "OTEL_TRACES_SAMPLER";
    const ARGUMENT: &str = "OTEL_TRACES_SAMPLER_ARG";
    let Some(sampler) = get(SAMPLER).filter(|name| !name.is_empty()) else { return Ok(Sampling::default()) };
    let (follows_parent, name) = match sampler.strip_prefix("parentbased_") {
        Some(name) => (true, name),
        None => (false, sampler.as_str()),
    };
    let ratio = match name {
        "always_on" => 1.0,
        "always_off" => 0.0,
        "traceidratio" => match get(ARGUMENT).filter(|text| !text.is_empty()) {
            None => 1.0,
            Some(text) => match text.parse() {
                Ok(ratio) if (0.0..=1.0).contains(&ratio) => ratio,
                _ => bail!("`{ARGUMENT}` is `{text}`; it is a number from 0 to 1"),
            },
        },
        _ => bail!(
            "`{SAMPLER}` is `{sampler}`; it is `always_on`, `always_off` or `traceidratio`, or one of these after `parentbased_`"
        ),
    };
    Ok(Sampling { follows_parent, ratio })
}

/// Returns additional attributes of this program. Its name is always agent-sandbox's, as for its
/// own controller.
fn attributes(get: impl Fn(&str) -> Option<String>) -> anyhow::Result<Vec<(String, String)>> {
    let text = get("OTEL_RESOURCE_ATTRIBUTES").unwrap_or_default();
    let mut attributes = pairs("OTEL_RESOURCE_ATTRIBUTES", &text)?;
    attributes.retain(|(key, _)| key != "service.name");
    Ok(attributes)
}

/// Parses `key=value`, separated by commas, with values that may be percent-encoded.
fn pairs(variable: &str, text: &str) -> anyhow::Result<Vec<(String, String)>> {
    let pairs = text.split(',').filter(|pair| !pair.trim().is_empty());
    let split = |pair: &str| {
        let (key, value) = pair.split_once('=').with_context(|| wrong_pairs(variable))?;
        Ok((key.trim().to_owned(), percent_decoded(value.trim())))
    };
    pairs.map(split).collect()
}

fn wrong_pairs(variable: &str) -> String {
    format!("read `{variable}`: it is `key=value`, separated by commas")
}

fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let code = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        match code.and_then(|digits| u8::from_str_radix(digits, 16).ok()).filter(|_| first == b'%') {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use warren_controllers::telemetry::{OtlpProtocol, Sampling};

    use super::config;

    fn read(variables: &[(&str, &str)]) -> anyhow::Result<warren_controllers::telemetry::OtlpConfig> {
        config(|name| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn the_environment_says_where_and_how() {
        let plain = read(&[]).unwrap();
        assert_eq!(
            (plain.endpoint.to_string().as_str(), plain.protocol),
            ("http://localhost:4317/", OtlpProtocol::Grpc)
        );
        let set = read(&[
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4317"),
            ("OTEL_EXPORTER_OTLP_INSECURE", "true"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "Authorization=Bearer%20x, a = b"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "1500"),
        ])
        .unwrap();
        assert_eq!(set.endpoint, "http://collector:4317/");
        assert_eq!(
            (set.headers["authorization"].as_bytes(), set.headers["a"].as_bytes()),
            (&b"Bearer x"[..], &b"b"[..])
        );
        assert_eq!(set.timeout.as_millis(), 1500);
        let traces = read(&[
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://x"),
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "y:1"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
        ])
        .unwrap();
        assert_eq!(
            (traces.endpoint.to_string().as_str(), traces.protocol),
            ("https://y:1/", OtlpProtocol::HttpProtobuf)
        );
        let http = |name, endpoint| {
            read(&[("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"), (name, endpoint)]).unwrap().endpoint
        };
        assert_eq!(http("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:1/base/"), "http://c:1/base/v1/traces");
        assert_eq!(
            http("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://c:1/v1/traces"),
            "http://c:1/v1/traces"
        );
    }

    #[test]
    fn the_environment_says_what_is_told_of_whom() {
        let sampling = |sampler, argument| {
            read(&[("OTEL_TRACES_SAMPLER", sampler), ("OTEL_TRACES_SAMPLER_ARG", argument)]).unwrap().sampling
        };
        assert_eq!(sampling("", ""), Sampling::default());
        assert_eq!(sampling("always_off", "1"), Sampling { follows_parent: false, ratio: 0.0 });
        assert_eq!(
            sampling("parentbased_traceidratio", "0.01"),
            Sampling { follows_parent: true, ratio: 0.01 }
        );
        let told = read(&[("OTEL_RESOURCE_ATTRIBUTES", "service.name=x, k8s.cluster.name=a%20b")]).unwrap();
        assert_eq!(told.attributes, [("k8s.cluster.name".to_owned(), "a b".to_owned())]);
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        for (variable, value) in [
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://a b"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "nonsense"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon"),
            ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/no/such/file"),
        ] {
            let error = format!("{:#}", read(&[(variable, value)]).unwrap_err());
            assert!(error.contains(variable), "{error}");
        }
    }

    #[test]
    fn what_says_no_sampler_or_attributes_is_ignored() {
        let ratio = [("OTEL_TRACES_SAMPLER", "traceidratio"), ("OTEL_TRACES_SAMPLER_ARG", "2")];
        for variables in [&ratio[..], &[("OTEL_TRACES_SAMPLER", "jaeger_remote")]] {
            assert_eq!(read(variables).unwrap().sampling, Sampling::default(), "{variables:?}");
        }
        assert!(read(&[("OTEL_RESOURCE_ATTRIBUTES", "nonsense")]).unwrap().attributes.is_empty());
    }
}
