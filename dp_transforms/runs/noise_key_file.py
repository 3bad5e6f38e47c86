"""The noise key of a run, in a private file."""

from __future__ import annotations

from dp_transforms.mechanisms.randomness import MIN_KEY_BYTES
from dp_transforms.stores.local_files import mode_for_others, open_regular

_MAX_KEY_BYTES = 1 << 16
_LEAST_DIFFERENT_BYTES = 8  # of 32 random bytes, one key in 10^33 has fewer; of 32 random hex digits, one in 10^7
MAKE_ONE = "Make one with: (umask 077; head -c 32 /dev/urandom > noise.key)"


def read_key_file(path: str) -> bytes:
    """Raises ValueError if the file is missing, open to others, too short or too long, or clearly not random.

    A pipe is refused: it can be read only once, and every worker needs the key.
    """
    try:
        with open_regular(path) as file:
            if mode := mode_for_others(file):
                raise ValueError(
                    f"the noise key file {path} can be used by others (mode {mode}). Close it with: chmod 600 {path}"
                )
            secret = file.read(_MAX_KEY_BYTES + 1)
    except OSError as error:
        raise ValueError(f"the noise key file {path} cannot be read: {error.strerror}. {MAKE_ONE}") from None
    if not MIN_KEY_BYTES <= len(secret) <= _MAX_KEY_BYTES:
        raise ValueError(
            f"the noise key file {path} must hold {MIN_KEY_BYTES} to {_MAX_KEY_BYTES} bytes,"
            f" got {len(secret) if len(secret) <= _MAX_KEY_BYTES else 'more'}. {MAKE_ONE}"
        )
    if (different := len(set(secret))) < _LEAST_DIFFERENT_BYTES:
        raise ValueError(
            f"the noise key file {path} is not random: it holds only {different} different"
            f" {'byte' if different == 1 else 'bytes'}, so that others can guess it. {MAKE_ONE}"
        )
    return secret
