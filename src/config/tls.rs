//! A node's certificate, its key, and the authority that signs the fleet's certificates.

use std::fmt;

use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};

use super::ConfigError;

/// What a node shows its peers, and what it takes from them.
///
/// Each node's certificate carries its [`NodeId`](crate::NodeId) as a DNS name, and is good for both ends of a
/// connection (extended key usages "server authentication" and "client authentication"). Whoever holds a
/// certificate of this authority with a peer's name is that peer, so the authority should sign nothing else.
pub struct TlsIdentity {
    pub(crate) ca: Vec<CertificateDer<'static>>,
    pub(crate) chain: Vec<CertificateDer<'static>>,
    pub(crate) key: PrivateKeyDer<'static>,
}

impl TlsIdentity {
    /// Reads an identity from PEM texts: the authorities' certificates, the node's certificate followed by any
    /// intermediate ones, and its private key (PKCS #8, PKCS #1 or SEC 1).
    ///
    /// What the certificates say is checked when a mesh starts with them, and by each peer.
    ///
    /// # Errors
    /// Says which of the three cannot be read, as `tls.ca`, `tls.cert` or `tls.key`.
    pub fn from_pem(ca: &[u8], chain: &[u8], key: &[u8]) -> Result<Self, ConfigError> {
        Ok(Self {
            ca: certificates("tls.ca", ca)?,
            chain: certificates("tls.cert", chain)?,
            key: private_key(key)?,
        })
    }
}

fn certificates(key: &str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, ConfigError> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match read {
        Ok(certificates) if certificates.is_empty() => Err(ConfigError::refused(
            key,
            "holds no certificate; it takes PEM with \"-----BEGIN CERTIFICATE-----\"",
        )),
        Ok(certificates) => Ok(certificates),
        Err(_) => Err(ConfigError::refused(key, "holds PEM that cannot be read; it takes PEM certificates")),
    }
}

fn private_key(pem: &[u8]) -> Result<PrivateKeyDer<'static>, ConfigError> {
    // The reader's own error may quote a line of the file, so it is not passed on.
    PrivateKeyDer::from_pem_slice(pem).map_err(|_| {
        let wanted =
            "holds no private key that can be read; it takes PEM with \"-----BEGIN PRIVATE KEY-----\"";
        ConfigError::refused("tls.key", wanted)
    })
}

impl Clone for TlsIdentity {
    fn clone(&self) -> Self {
        Self { ca: self.ca.clone(), chain: self.chain.clone(), key: self.key.clone_key() }
    }
}

impl fmt::Debug for TlsIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The key must not reach a log.
        let Self { ca, chain, key: _ } = self;
        write!(f, "TlsIdentity(ca: {} certificates, chain: {}, key: hidden)", ca.len(), chain.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_of_the_three_is_named_when_it_cannot_be_read() {
        let made = rcgen::generate_simple_self_signed(["node-1".to_owned()]).unwrap();
        let (cert, key) = (made.cert.pem(), made.signing_key.serialize_pem());
        let identity = TlsIdentity::from_pem(cert.as_bytes(), cert.as_bytes(), key.as_bytes()).unwrap();
        assert_eq!(format!("{identity:?}"), "TlsIdentity(ca: 1 certificates, chain: 1, key: hidden)");

        let (cert, key) = (cert.as_bytes(), key.as_bytes());
        let broken = b"-----BEGIN CERTIFICATE-----\n!!!\n-----END CERTIFICATE-----\n";
        let cases = [
            (&b""[..], cert, key, "tls.ca"),
            (broken, cert, key, "tls.ca"),
            (cert, key, key, "tls.cert"),
            (cert, cert, cert, "tls.key"),
            (cert, cert, b"secret stuff", "tls.key"),
        ];
        for (ca, chain, key, at_fault) in cases {
            let error = TlsIdentity::from_pem(ca, chain, key).unwrap_err();
            assert_eq!(error.key(), at_fault);
            assert!(!error.to_string().contains("stuff"));
        }
    }
}
