"""Certificates for the tests of TLS, made with the program `openssl`: an authority and what it signs."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

PASSWORD = "pass word"


def openssl(*arguments: str | Path) -> str:
    done = subprocess.run(["openssl", *map(str, arguments)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"openssl {arguments}: {done.stderr}"
    return done.stdout


class Authority:
    """A certificate authority. ``directory/NAME.pem`` has a key and its certificate."""

    def __init__(self, directory: Path, name: str = "authority") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._key = directory / f"{name}.key"
        self.certificate = directory / f"{name}.crt"
        openssl(
            "req", "-x509", *_new_key(self._key), "-out", self.certificate, "-days", "2",
            "-subj", f"/CN={name}", "-addext", "keyUsage=critical,keyCertSign,cRLSign",
        )  # fmt: skip

    def issue(self, name: str, subject: str, *options: str) -> Path:
        """Makes a file with a key and a certificate for localhost.

        ``subject`` is openssl's: /O=...+.../CN=...
        """
        key, request, made = (self._directory / f"{name}.{ending}" for ending in ("key", "csr", "crt"))
        openssl("req", "-new", *_new_key(key), "-out", request, "-utf8", "-subj", subject, *options)
        extensions = self._directory / f"{name}.cnf"
        extensions.write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
        openssl(
            "x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self._key, "-CAcreateserial",
            "-days", "2", "-extfile", extensions, "-out", made,
        )  # fmt: skip
        together = self._directory / f"{name}.pem"
        together.write_text(key.read_text() + made.read_text())
        return together

    def issue_by(self, name: str, subject: str, issuer: Path) -> Path:
        """Makes a key and a certificate signed with the key of ``issuer``, which need not be an authority."""
        made, request = self._directory / f"{name}.crt", self._directory / f"{name}.csr"
        key = self._directory / f"{name}.key"
        openssl("req", "-new", *_new_key(key), "-out", request, "-subj", subject)
        openssl(
            "x509", "-req", "-in", request, "-CA", issuer, "-CAkey", issuer, "-CAcreateserial", "-days", "2",
            "-extfile", self._directory / f"{issuer.stem}.cnf", "-out", made,
        )  # fmt: skip
        together = self._directory / f"{name}.pem"
        together.write_text(key.read_text() + made.read_text())
        return together

    def client_context(self, identity: Path | None = None) -> ssl.SSLContext:
        """A client's context, which trusts the authority and presents ``identity``."""
        context = ssl.create_default_context(cafile=self.certificate)
        if identity is not None:
            context.load_cert_chain(identity)
        return context


def _new_key(path: Path) -> list[str]:
    return ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", str(path)]


def pkcs12(pem: Path, password: str = PASSWORD) -> Path:
    """The same key and certificate as PKCS12."""
    path = pem.with_suffix(".p12")
    openssl("pkcs12", "-export", "-in", pem, "-out", path, "-passout", f"pass:{password}", "-name", "server")
    return path


def encrypted(pem: Path, password: str = PASSWORD) -> Path:
    """The same key and certificate, with the key encrypted by a password."""
    path = pem.with_suffix(".encrypted.pem")
    openssl("pkcs8", "-topk8", "-in", pem, "-out", path, "-passout", f"pass:{password}")
    certificate = pem.read_text()
    path.write_text(path.read_text() + certificate[certificate.index("-----BEGIN CERTIFICATE") :])
    return path
