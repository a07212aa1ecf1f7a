"""TLS at both sides: towards clients with a certificate, towards replicas with their CAs."""

import ssl

from contract.options import SettingError


def server_context(cert_file: str, key_file: str) -> ssl.SSLContext:
    """Return how clients are spoken to: TLS 1.2 or newer, HTTP/1.1. Raises SettingError."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.set_alpn_protocols(["http/1.1"])
    try:
        # An empty password, for without one OpenSSL asks on the terminal.
        context.load_cert_chain(cert_file, key_file, password="")
    except OSError as error:  # all of ssl's are OSErrors
        why = _why(error)
        raise SettingError(
            f"tls_cert_file {cert_file} with tls_key_file {key_file}: {why}"
        ) from error
    return context


def replica_context(ca_file: str, *, verify: bool) -> ssl.SSLContext:
    """Return how replicas are spoken to; without ``ca_file`` they are checked by the system's CAs.

    Raises SettingError.
    """
    try:
        context = ssl.create_default_context(cafile=ca_file or None)
    except OSError as error:
        raise SettingError(f"replica_ca_file {ca_file}: {_why(error)}") from error
    context.set_alpn_protocols(["http/1.1"])
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _why(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return f"not a usable PEM file ({error.reason or 'no reason given'})"
    return error.strerror or "cannot be read"
