//! Who may speak: mutual TLS 1.3 against the cluster's own authority.
//!
//! A node's certificate carries its [`NodeId`] as a DNS name. The node that dials knows whom it dials, and verifies
//! that name in the handshake. The node that listens verifies the chain in the handshake and the name after it,
//! when the dialler has said which it claims. So a certificate of the cluster's authority speaks for the names in it
//! and for no other; a wildcard certificate speaks for every name under it, and should not be issued.
//!
//! Each connection pays for a whole handshake: tickets, resumption and 0-RTT are off, so that an expired certificate
//! is never taken for the sake of an old session, and nothing can be replayed. The cryptography is `ring`'s by name;
//! the process-wide default of rustls is neither read nor set.

use std::sync::Arc;

use quinn::{
    Connection,
    crypto::rustls::{QuicClientConfig, QuicServerConfig},
};
use ring::hmac;
use rustls::{
    RootCertStore,
    client::{Resumption, WebPkiServerVerifier},
    crypto::CryptoProvider,
    pki_types::{CertificateDer, ServerName, UnixTime},
    server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier},
};

use super::{endpoint, error::IdentityError, refusal::Refusal};
use crate::{config::TlsIdentity, node::NodeId, time::WallTime};

/// The application protocol, with its version.
pub(crate) const ALPN: &[u8] = b"ratemesh/1";

/// What the endpoint needs of the node's identity.
pub(crate) struct Tls {
    /// For dialling.
    pub(crate) client: quinn::ClientConfig,
    /// For listening.
    pub(crate) server: Arc<quinn::ServerConfig>,
    /// Signs stateless resets.
    pub(crate) reset_key: Arc<hmac::Key>,
    /// Marks connection ids as this node's.
    pub(crate) id_key: u64,
}

impl Tls {
    /// Checks that the parts fit each other and the node's name.
    pub(crate) fn new(identity: &TlsIdentity, node: &NodeId) -> Result<Self, IdentityError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let roots = Arc::new(roots(&identity.ca)?);
        check_own_name(identity, node)?;
        let server = server(identity, &roots, &provider)?;
        let client = client(identity, &roots, &provider)?;
        // Both keys outlive a restart as long as the private key does, so that a node that was killed and started
        // again can tell its peers at once that their connections to it are dead (RFC 9000, 10.3.2).
        let root = hmac::Key::new(hmac::HMAC_SHA256, identity.key.secret_der());
        let reset_key = hmac::sign(&root, b"ratemesh stateless reset");
        let id_key = hmac::sign(&root, b"ratemesh connection ids");
        let id_key = id_key.as_ref().iter().take(8).fold(0, |key, byte| key << 8 | u64::from(*byte));
        Ok(Self {
            client: endpoint::client(
                QuicClientConfig::try_from(client).map_err(unusable("the cryptography"))?,
            ),
            server: Arc::new(endpoint::server(
                QuicServerConfig::try_from(server).map_err(unusable("the cryptography"))?,
            )),
            reset_key: Arc::new(hmac::Key::new(hmac::HMAC_SHA256, reset_key.as_ref())),
            id_key,
        })
    }
}

fn server(
    identity: &TlsIdentity,
    roots: &Arc<RootCertStore>,
    provider: &Arc<CryptoProvider>,
) -> Result<rustls::ServerConfig, IdentityError> {
    let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone())
        .build()
        .map_err(unusable("the authority's certificate"))?;
    let mut config = rustls::ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(unusable("TLS 1.3"))?
        .with_client_cert_verifier(verifier)
        .with_single_cert(identity.chain.clone(), identity.key.clone_key())
        .map_err(unusable("the certificate or its private key"))?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.max_early_data_size = 0;
    Ok(config)
}

fn client(
    identity: &TlsIdentity,
    roots: &Arc<RootCertStore>,
    provider: &Arc<CryptoProvider>,
) -> Result<rustls::ClientConfig, IdentityError> {
    let verifier = WebPkiServerVerifier::builder_with_provider(roots.clone(), provider.clone())
        .build()
        .map_err(unusable("the authority's certificate"))?;
    let mut config = rustls::ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(unusable("TLS 1.3"))?
        .with_webpki_verifier(verifier)
        .with_client_auth_cert(identity.chain.clone(), identity.key.clone_key())
        .map_err(unusable("the certificate or its private key"))?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.resumption = Resumption::disabled();
    config.enable_early_data = false;
    Ok(config)
}

fn roots(ca: &[CertificateDer<'static>]) -> Result<RootCertStore, IdentityError> {
    let mut roots = RootCertStore::empty();
    for certificate in ca {
        roots.add(certificate.clone()).map_err(unusable("the authority's certificate"))?;
    }
    if roots.is_empty() {
        let reason =
            "the authority's certificate is missing; give the one that signs the nodes' certificates";
        return Err(IdentityError::Unusable { reason: reason.to_owned() });
    }
    Ok(roots)
}

fn unusable<E: std::fmt::Display>(what: &'static str) -> impl Fn(E) -> IdentityError {
    move |error| IdentityError::Unusable { reason: format!("{what}: {error}") }
}

/// The name as TLS writes it.
///
/// # Errors
/// A name whose last part is a number could be mistaken for an address.
pub(crate) fn server_name(node: &NodeId) -> Result<ServerName<'static>, IdentityError> {
    ServerName::try_from(node.as_str().to_owned()).map_err(|_| IdentityError::Name { node: node.clone() })
}

fn check_own_name(identity: &TlsIdentity, node: &NodeId) -> Result<(), IdentityError> {
    let Some(own) = identity.chain.first() else {
        return Err(IdentityError::Unusable {
            reason: "the certificate is missing; give the node's own".to_owned(),
        });
    };
    let name = server_name(node)?;
    let own = ParsedCertificate::try_from(own).map_err(unusable("the certificate"))?;
    rustls::client::verify_server_name(&own, &name)
        .map_err(|error| IdentityError::NotCertified { node: node.clone(), reason: error.to_string() })
}

/// Says why peers would refuse this node's certificate at this time, if they would.
pub(crate) fn flaw(identity: &TlsIdentity, now: WallTime) -> Option<String> {
    let provider = rustls::crypto::ring::default_provider();
    let (own, intermediates) = identity.chain.split_first()?;
    let own = ParsedCertificate::try_from(own).ok()?;
    let roots = roots(&identity.ca).ok()?;
    let now = UnixTime::since_unix_epoch(std::time::Duration::from_nanos(now.as_unix_nanos()));
    let algorithms = provider.signature_verification_algorithms.all;
    rustls::client::verify_server_cert_signed_by_trust_anchor(&own, &roots, intermediates, now, algorithms)
        .err()
        .map(|error| error.to_string())
}

/// Whether the certificate that the other side showed is valid for this name.
pub(crate) fn vouch(connection: &Connection, node: &NodeId) -> Result<(), Refusal> {
    let identity = connection.peer_identity().ok_or(Refusal::Tls)?;
    let chain = identity.downcast::<Vec<CertificateDer<'static>>>().map_err(|_| Refusal::Tls)?;
    let certificate = chain.first().ok_or(Refusal::Tls)?;
    let certificate = ParsedCertificate::try_from(certificate).map_err(|_| Refusal::Tls)?;
    let name = server_name(node).map_err(|_| Refusal::NotCertified)?;
    rustls::client::verify_server_name(&certificate, &name).map_err(|_| Refusal::NotCertified)
}
