//! A cluster's authority, that issues certificates good and bad.

use rcgen::{
    BasicConstraints, Certificate, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};

/// An authority with a key of its own.
pub(crate) struct Authority {
    certificate: Certificate,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate and its key, in PEM.
pub(crate) struct Issued {
    pub(crate) chain: String,
    pub(crate) key: String,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "a cluster's authority");
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("a certificate");
        Self { certificate, issuer: Issuer::new(params, key) }
    }

    /// The authority's own certificate, in PEM.
    pub(crate) fn pem(&self) -> String {
        self.certificate.pem()
    }

    /// A certificate for this name.
    pub(crate) fn issue(&self, name: &str) -> Issued {
        self.issue_until(name, 4096)
    }

    /// A certificate that has expired.
    pub(crate) fn issue_expired(&self, name: &str) -> Issued {
        self.issue_until(name, 2001)
    }

    fn issue_until(&self, name: &str, year: i32) -> Issued {
        let mut params = CertificateParams::new(vec![name.to_owned()]).expect("a DNS name");
        params.distinguished_name.push(DnType::CommonName, name);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.not_before = date_time_ymd(2000, 1, 1);
        params.not_after = date_time_ymd(year, 1, 1);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        Issued { chain: certificate.pem(), key: key.serialize_pem() }
    }
}
