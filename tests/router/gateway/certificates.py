"""A certificate authority for one test, made by the openssl command."""

import shutil
import subprocess
from pathlib import Path

OPENSSL = shutil.which("openssl")
CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


class Authority:
    """Signs certificates for this machine."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._folder = folder
        self.cert = folder / f"{name}.pem"
        self._key = folder / f"{name}.key"
        self._run("req", "-x509", *CURVE, "-keyout", self._key, "-out", self.cert)

    def sign(self, name: str, host: str = "IP:127.0.0.1,DNS:localhost") -> tuple[Path, Path]:
        """Return the files of a certificate and of its key."""
        cert, key = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        self._run(
            *("req", "-x509", *CURVE, "-keyout", key, "-out", cert, "-subj", f"/CN={name}"),
            *("-CA", self.cert, "-CAkey", self._key, "-addext", f"subjectAltName={host}"),
            *("-addext", "basicConstraints=critical,CA:FALSE"),
        )
        return cert, key

    def _run(self, *arguments: str | Path) -> None:
        more = () if "-subj" in arguments else ("-subj", "/CN=test authority")
        command = [OPENSSL or "openssl", *arguments, *more, "-days", "2"]
        subprocess.run(command, check=True, capture_output=True)
