"""What of the settings has to be read from files: keys and certificates, all of it or nothing."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field

from router.gateway.api_keys import ApiKeys, read_api_keys
from router.gateway.config import GatewayConfig
from router.gateway.tls import replica_context, server_context


@dataclass(frozen=True, slots=True)
class Credentials:
    """Read once at the start and again at every reload."""

    keys: ApiKeys | None  # None: nobody needs one
    tls: ssl.SSLContext | None  # towards clients; None: without TLS
    replica_tls: ssl.SSLContext | None  # None: as the system would; made when it is needed
    of_replicas: Mapping[str, str] = field(default_factory=dict, repr=False)
    """By url, the Authorization header of a replica that has one of its own."""


def read_credentials(config: GatewayConfig) -> Credentials:
    """Read all files that ``config`` names. Raises SettingError."""
    keys = read_api_keys(config.api_keys, config.api_keys_file, "[gateway] api_keys")
    tls = None
    if config.tls_cert_file:
        tls = server_context(config.tls_cert_file, config.tls_key_file)
    replica_tls = None
    if config.replica_ca_file or not config.replica_tls_verify:
        replica_tls = replica_context(config.replica_ca_file, verify=config.replica_tls_verify)
    return Credentials(keys, tls, replica_tls)
