"""Certificates for fakes with TLS."""

from __future__ import annotations

import datetime
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def certificate(folder: Path, name: str, *, feigned: x509.Name | None = None, valid_days: int = 1) -> Path:
    """Write a self-signed certificate and its key to one file. `feigned` is an issuer that it names falsely.

    It is valid from a year before to `valid_days` from now, which may be negative for an expired one.
    """
    key = signer = ec.generate_private_key(ec.SECP256R1())
    if feigned is not None:
        signer = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(feigned or subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=365))
        .not_valid_after(now + datetime.timedelta(days=valid_days))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(signer, hashes.SHA256())
    )
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    path = folder / f"{name}.pem"
    path.write_bytes(
        made.public_bytes(serialization.Encoding.PEM) + key.private_bytes(serialization.Encoding.PEM, *form)
    )
    return path


def context(file: Path) -> ssl.SSLContext:
    """Return a server context with the certificate and key in `file`."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.load_cert_chain(file)
    return made


def private_authority(folder: Path, name: str) -> tuple[Path, Path]:
    """Write the certificate of an authority, and a certificate that it issued, with its key. Return both files.

    As with many private authorities, the extensions that only RFC 5280 demands are missing.
    """
    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "A private authority")])
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    start = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    end = start + datetime.timedelta(days=2)
    authority = (
        x509.CertificateBuilder(authority_name, authority_name, authority_key.public_key(), 1, start, end)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    issued = (
        x509.CertificateBuilder(authority_name, subject, key.public_key(), 2, start, end)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    authority_file, issued_file = folder / "authority.pem", folder / "issued.pem"
    authority_file.write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    issued_file.write_bytes(
        issued.public_bytes(serialization.Encoding.PEM) + key.private_bytes(serialization.Encoding.PEM, *form)
    )
    return authority_file, issued_file
