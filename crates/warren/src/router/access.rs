//! The flags of `warren router` for access: authorization, cookies of browsers, and TLS.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use clap::{Args, ValueEnum};
use warren_router::token::KeySet;
use warren_router::{
    Authorization, BrowserConfig, ClientCertificates, SameSite, Tls, TlsFiles, TokenReviews,
};

use super::duration;

/// How clients are authorized.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AuthzMode {
    /// Everybody may send requests
    AllowAll,
    /// Bearer tokens of the cluster, by TokenReview and SubjectAccessReview
    Tokenreview,
    /// Signed tokens for one sandbox (`warren token create`)
    ScopedToken,
}

/// When browsers send the cookie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CookieSameSite {
    /// Also with links from other sites
    Lax,
    /// Never from other sites
    Strict,
    /// Always; only with TLS
    None,
}

/// Whether clients have certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MtlsMode {
    /// They are not asked for one
    Off,
    /// One that they have must be good
    Optional,
    /// They must have one
    Required,
}

#[derive(Args, Clone, Debug)]
pub struct AccessFlags {
    /// How clients are authorized
    #[arg(long, value_name = "MODE", value_enum, default_value = "allow-all")]
    pub authz_mode: AuthzMode,
    /// How long answers about a token are believed (`tokenreview`)
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration)]
    pub authz_tokenreview_ttl: Duration,
    /// How many answers are remembered (`tokenreview`)
    #[arg(long, value_name = "NUMBER", default_value_t = 2048)]
    pub authz_tokenreview_cache_size: usize,
    /// Refuse requests without a token (`tokenreview`)
    #[arg(long, value_name = "BOOL", default_value_t = true, num_args = 0..=1, require_equals = true,
        default_missing_value = "true", action = clap::ArgAction::Set)]
    pub authz_tokenreview_require_token: bool,
    /// Audiences that tokens must be for (`tokenreview`)
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub authz_tokenreview_audiences: Vec<String>,
    /// The keys whose tokens are believed, as JSON (`scoped-token`)
    #[arg(long, value_name = "FILE")]
    pub authz_scoped_token_verification_keys_file: Option<PathBuf>,
    /// The cookie in which browsers keep their token
    #[arg(long, value_name = "NAME")]
    pub authz_cookie_name: Option<String>,
    /// The query parameter in which a browser's first request has the token
    #[arg(long, value_name = "NAME", requires = "authz_cookie_name")]
    pub authz_cookie_query_param: Option<String>,
    /// When browsers send the cookie
    #[arg(long, value_name = "WHEN", value_enum, default_value = "lax")]
    pub authz_cookie_samesite: CookieSameSite,
    /// Let browsers send the cookie without TLS
    #[arg(long, value_name = "BOOL", default_value_t = false, num_args = 0..=1, require_equals = true,
        default_missing_value = "true", action = clap::ArgAction::Set)]
    pub authz_cookie_insecure: bool,
    /// Other origins whose pages may use the cookie, such as `https://app.example`
    #[arg(long, value_name = "ORIGIN", value_delimiter = ',')]
    pub authz_cookie_allowed_origins: Vec<String>,
    /// The certificate for `--https-bind-address`, read again when it changes
    #[arg(long, value_name = "FILE", requires = "tls_key_file")]
    pub tls_cert_file: Option<PathBuf>,
    /// Its key
    #[arg(long, value_name = "FILE", requires = "tls_cert_file")]
    pub tls_key_file: Option<PathBuf>,
    /// The authorities that sign clients' certificates
    #[arg(long, value_name = "FILE")]
    pub tls_client_ca_file: Option<PathBuf>,
    /// Whether clients have certificates
    #[arg(long, value_name = "MODE", value_enum, default_value = "off", requires = "tls_client_ca_file")]
    pub mtls_mode: MtlsMode,
}

impl AccessFlags {
    /// Returns the settings for authorization.
    pub fn authorization(&self) -> anyhow::Result<Authorization> {
        Ok(match self.authz_mode {
            AuthzMode::AllowAll => Authorization::AllowAll,
            AuthzMode::Tokenreview => Authorization::TokenReview(TokenReviews {
                ttl: self.authz_tokenreview_ttl,
                cache_size: self.authz_tokenreview_cache_size,
                require_token: self.authz_tokenreview_require_token,
                audiences: self.authz_tokenreview_audiences.clone(),
            }),
            AuthzMode::ScopedToken => {
                let path = self.authz_scoped_token_verification_keys_file.as_ref();
                let path = path.context(
                    "`--authz-mode=scoped-token` needs `--authz-scoped-token-verification-keys-file`",
                )?;
                let text =
                    std::fs::read_to_string(path).with_context(|| format!("read `{}`", path.display()))?;
                let keys =
                    KeySet::parse(&text).with_context(|| format!("use the keys in `{}`", path.display()))?;
                Authorization::ScopedToken(keys)
            }
        })
    }

    /// Returns the settings for browsers' tokens.
    pub fn browser(&self, urls_name_sandboxes: bool) -> anyhow::Result<BrowserConfig> {
        if let Some(name) = &self.authz_cookie_name {
            let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
            ensure!(
                !name.is_empty() && name.bytes().all(is_name),
                "`--authz-cookie-name` must be letters, digits, `-` and `_`"
            );
            ensure!(
                urls_name_sandboxes,
                "`--authz-cookie-name` needs `--path-routing-prefix` or `--host-routing-domain`"
            );
            ensure!(
                self.authz_mode != AuthzMode::AllowAll,
                "`--authz-cookie-name` needs an `--authz-mode` other than `allow-all`"
            );
        }
        ensure!(
            !(self.authz_cookie_insecure && self.authz_cookie_samesite == CookieSameSite::None),
            "`--authz-cookie-insecure` and `--authz-cookie-samesite=none` exclude each other: browsers refuse such a cookie"
        );
        Ok(BrowserConfig {
            cookie: self.authz_cookie_name.clone(),
            query_param: self.authz_cookie_query_param.clone(),
            same_site: match self.authz_cookie_samesite {
                CookieSameSite::Lax => SameSite::Lax,
                CookieSameSite::Strict => SameSite::Strict,
                CookieSameSite::None => SameSite::None,
            },
            insecure: self.authz_cookie_insecure,
            allowed_origins: self.authz_cookie_allowed_origins.clone(),
        })
    }

    /// Reads the files of TLS. To be called in a runtime.
    pub fn tls(&self) -> anyhow::Result<Arc<Tls>> {
        let (Some(certificate), Some(key)) = (&self.tls_cert_file, &self.tls_key_file) else {
            anyhow::bail!("`--https-bind-address` needs `--tls-cert-file` and `--tls-key-file`");
        };
        let files = TlsFiles {
            certificate: certificate.clone(),
            key: key.clone(),
            client_authorities: self.tls_client_ca_file.clone(),
            client_certificates: match self.mtls_mode {
                MtlsMode::Off => ClientCertificates::Off,
                MtlsMode::Optional => ClientCertificates::Optional,
                MtlsMode::Required => ClientCertificates::Required,
            },
        };
        Ok(Arc::new(Tls::load(files).context("serve TLS")?))
    }
}
