"""Formats of JSON Schema strings, as regular expressions of exactly the texts that are valid.

A few are narrower than the standard where it leaves room (no leap seconds, no quoted local parts of
addresses, names of hosts by RFC 1123): every text they allow is valid.
"""

_COMMON_DAY = r"(?:0[1-9]|1[0-9]|2[0-8])"
_MONTH_DAY = (
    rf"(?:(?:0[1-9]|1[0-2])-{_COMMON_DAY}"
    r"|(?:0[13-9]|1[0-2])-(?:29|30)"
    r"|(?:0[13578]|1[02])-31)"
)
_YEAR = r"(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"  # not the year 0
_LEAP_PAIR = r"(?:0[48]|[2468][048]|[13579][26])"  # divisible by 4 and not 00
_LEAP_YEAR = rf"(?:[0-9]{{2}}{_LEAP_PAIR}|{_LEAP_PAIR}00)"
_DATE = rf"(?:{_YEAR}-{_MONTH_DAY}|{_LEAP_YEAR}-02-29)"

_CLOCK = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?"
_OFFSET = r"(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_TIME = rf"{_CLOCK}{_OFFSET}"

_WEEKS = r"[0-9]{1,9}W"
_DAYS = r"(?:[0-9]{1,9}Y(?:[0-9]{1,9}M(?:[0-9]{1,9}D)?)?|[0-9]{1,9}M(?:[0-9]{1,9}D)?|[0-9]{1,9}D)"
_HOURS = r"T(?:[0-9]{1,9}H(?:[0-9]{1,9}M(?:[0-9]{1,9}S)?)?|[0-9]{1,9}M(?:[0-9]{1,9}S)?|[0-9]{1,9}S)"
_DURATION = rf"P(?:{_WEEKS}|{_DAYS}(?:{_HOURS})?|{_HOURS})"

_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,30}[A-Za-z0-9])?"
_HOSTNAME = rf"{_LABEL}(?:\.{_LABEL}){{0,6}}"  # at most 7 labels of 32: within 253 bytes
_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]{1,20}"
_EMAIL = rf"{_ATOM}(?:\.{_ATOM}){{0,2}}@{_HOSTNAME}"

_BYTE = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = rf"{_BYTE}(?:\.{_BYTE}){{3}}"
_GROUP = r"[0-9A-Fa-f]{1,4}"


def _ipv6() -> str:
    forms = [rf"{_GROUP}(?::{_GROUP}){{7}}"]
    for before in range(8):  # groups before the "::", which stands for at least one
        head = rf"{_GROUP}(?::{_GROUP}){{{before - 1}}}" if before else ""
        room = 7 - before
        tail = rf"(?:{_GROUP}(?::{_GROUP}){{0,{room - 1}}})?" if room else ""
        forms.append(f"{head}::{tail}")
    return f"(?:{'|'.join(forms)})"


_UUID = r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"

_PCHAR = r"(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"
_URI = (
    r"[A-Za-z][A-Za-z0-9+.-]{0,15}://"
    rf"(?:{_HOSTNAME}|{_IPV4})(?::[0-9]{{1,4}})?"
    rf"(?:/{_PCHAR}*)*(?:\?(?:{_PCHAR}|[/?])*)?(?:#(?:{_PCHAR}|[/?])*)?"
)

FORMATS = {
    name: f"^(?:{pattern})$"
    for name, pattern in {
        "date": _DATE,
        "date-time": f"{_DATE}T{_TIME}",
        "duration": _DURATION,
        "email": _EMAIL,
        "hostname": _HOSTNAME,
        "ipv4": _IPV4,
        "ipv6": _ipv6(),
        "time": _TIME,
        "uri": _URI,
        "uuid": _UUID,
    }.items()
}
