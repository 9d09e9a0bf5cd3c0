"""Tests of opening a bucket: invalid addresses get an error and send nothing."""

import re

import pytest
from obstore.exceptions import GenericError, PermissionDeniedError

from svc.errors import UsageError
from svc.stores.bundles.bucket_connection import error_reason, open_bucket

RESPONSE = (
    "Generic S3 error: Error performing PUT http://127.0.0.1:1/b/p in 1ms - Server returned non-2xx status code: "
    '500 Internal Server Error: <?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>InternalError</Code><Message>We '
    "encountered an internal error.</Message><Resource>/b/p</Resource></Error>\n\nDebug source:\nGeneric {\n}"
)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("s3:///prefix", "is not the URL of a bucket"),
        ("s3://user:password@bundles/prefix", "is not the URL of a bucket"),
        ("s3://bundles?region=x", "is not the URL of a bucket"),
        ("s3://bundles/a?b", r"has '\?' or '#'"),
        ("s3://bundles/a#b", r"has '\?' or '#'"),
        ("s3://bundles/a/../b", "cannot be used: .*illegal character sequence"),
    ],
)
def test_open_bucket_invalid_url_raises_usage_error(url, message):
    with pytest.raises(UsageError, match=message):
        open_bucket(url, {})


@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
@pytest.mark.parametrize(
    "endpoint", ["nonsense", "127.0.0.1:9000", "http://", "ftp://host", "http://[::1", "http://:9000"]
)
def test_open_bucket_endpoint_without_scheme_or_host_raises_usage_error(name, endpoint):
    with pytest.raises(UsageError, match=re.escape(f"{name} is '{endpoint}', which is not a URL")):
        open_bucket("s3://bundles/prefix", {name: endpoint})


def test_open_bucket_prefix_with_spaces_and_unicode_is_kept():
    assert open_bucket("s3://bundles/odd präfix+%20&/x/", {}).prefix is not None
    assert open_bucket("s3://bundles", {}).prefix is None


def test_error_reason_response_is_code_and_message_without_xml():
    assert error_reason(GenericError(RESPONSE)) == (
        "status 500 Internal Server Error: InternalError: We encountered an internal error."
    )


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (PermissionDeniedError("denied"), "denied (check AWS_ACCESS_KEY_ID, "),
        (GenericError("HTTP error: error sending request\nmore"), "request (check AWS_ENDPOINT_URL and the network)"),
        (GenericError("Error performing PUT http://169.254.169.254/latest"), "(set AWS_ACCESS_KEY_ID and "),
    ],
)
def test_error_reason_known_failure_says_what_to_check(error, hint):
    assert hint in error_reason(error)
