//! Reads the user and groups of a client certificate: its subject's common name and organizations.
//! TLS has verified the certificate before.

use super::User;

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OBJECT_IDENTIFIER: u8 = 0x06;
const EXPLICIT_VERSION: u8 = 0xa0;
/// OID 2.5.4.3.
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
/// OID 2.5.4.10.
const ORGANIZATION: &[u8] = &[0x55, 0x04, 0x0a];

/// Returns the user that a certificate names, if there is one.
pub(in crate::kubelet) fn user(certificate: &[u8]) -> Option<User> {
    let (_, certificate, _) = element(certificate)?;
    let (_, mut fields, _) = element(certificate)?;
    if let (EXPLICIT_VERSION, _, rest) = element(fields)? {
        fields = rest;
    }
    // Serial number, signature algorithm, issuer and validity precede the subject.
    for _ in 0..4 {
        let (_, _, rest) = element(fields)?;
        fields = rest;
    }
    let (SEQUENCE, mut subject, _) = element(fields)? else { return None };
    let (mut name, mut groups) = (None, Vec::new());
    while let Some((SET, attributes, rest)) = element(subject) {
        subject = rest;
        let (SEQUENCE, attribute, _) = element(attributes)? else { return None };
        let (OBJECT_IDENTIFIER, kind, value) = element(attribute)? else { return None };
        let (_, text, _) = element(value)?;
        let text = std::str::from_utf8(text).ok()?.to_owned();
        match kind {
            COMMON_NAME => name = Some(text),
            ORGANIZATION => groups.push(text),
            _ => {}
        }
    }
    Some(User::new(name.filter(|name| !name.is_empty())?, groups))
}

/// Returns the tag and contents of the first DER element, and the rest.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = bytes.split_first()?;
    let (&first, mut rest) = rest.split_first()?;
    let length = if first < 0x80 {
        usize::from(first)
    } else {
        let count = usize::from(first & 0x7f);
        let (digits, after) = rest.split_at_checked(count)?;
        rest = after;
        if count == 0 || count > 4 {
            return None;
        }
        digits.iter().fold(0, |length, digit| length << 8 | usize::from(*digit))
    };
    let (contents, rest) = rest.split_at_checked(length)?;
    Some((tag, contents, rest))
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair};

    #[test]
    fn the_subject_names_user_and_groups() {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "system:masters");
        params.distinguished_name.push(DnType::CommonName, "kube-apiserver-kubelet-client");
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        let user = super::user(certificate.der()).unwrap();
        assert_eq!(user.name, "kube-apiserver-kubelet-client");
        assert_eq!(user.groups, ["system:masters", "system:authenticated"]);
        for end in 0..certificate.der().len() {
            // A truncated certificate is refused or read; it never causes a panic.
            let _ = super::user(&certificate.der()[..end]);
        }
    }
}
