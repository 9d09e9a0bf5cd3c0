/**
 * The errors of the SDK. Each class has the name, the code and the status of the Python SDK's class.
 *
 * A call that the caller aborts throws the reason of its `AbortSignal`, not one of these.
 */

import { parseRetryAfter } from "./retry.js";

interface ErrorDetails {
  param?: string | undefined;
  requestId?: string | undefined;
  status?: number | undefined;
  cause?: unknown;
}

/** The base of all errors. */
export class SvcError extends Error {
  override name = "SvcError";
  /** The error code, for programs. */
  code = "internal_error";
  /** The HTTP status of the response. Without a response, the status of the error's kind. */
  status = 500;
  /** The field that is invalid. */
  param: string | undefined;
  /** The gateway's `x-request-id`. */
  requestId: string | undefined;

  constructor(message: string, details: ErrorDetails = {}) {
    super(message);
    this.param = details.param;
    this.requestId = details.requestId;
    if (details.cause !== undefined) this.cause = details.cause;
  }
}

/** The request is malformed, or every provider would reject it. */
export class InvalidRequest extends SvcError {
  override name = "InvalidRequest";
  override code = "invalid_request";
  override status = 400;
}

/** The body is larger than the gateway allows. */
export class TooLarge extends InvalidRequest {
  override name = "TooLarge";
  override status = 413;
}

/** The head of the request is larger than the gateway allows. */
export class HeadTooLarge extends InvalidRequest {
  override name = "HeadTooLarge";
  override status = 431;
}

/** The key is missing, unknown, revoked or expired. */
export class AuthenticationFailed extends SvcError {
  override name = "AuthenticationFailed";
  override code = "authentication_error";
  override status = 401;
}

/** The key lacks the scope for this request. */
export class PermissionDenied extends SvcError {
  override name = "PermissionDenied";
  override code = "permission_denied";
  override status = 403;
}

/** No provider has the model, or the key may not use it. */
export class ModelNotFound extends SvcError {
  override name = "ModelNotFound";
  override code = "model_not_found";
  override status = 404;
}

/** There is nothing at this path. */
export class NotFound extends SvcError {
  override name = "NotFound";
  override code = "not_found";
  override status = 404;
}

/** The path does not support the method. */
export class MethodNotAllowed extends SvcError {
  override name = "MethodNotAllowed";
  override code = "method_not_allowed";
  override status = 405;
}

/** A limit of the key or of the provider is reached. */
export class RateLimited extends SvcError {
  override name = "RateLimited";
  override code = "rate_limit_exceeded";
  override status = 429;
  /** Seconds until the next request is possible. */
  retryAfter = 60;
}

/** The provider cannot be reached, times out, fails, or sends an invalid response. */
export class ProviderFailed extends SvcError {
  override name = "ProviderFailed";
  override code = "provider_error";
  override status = 502;
}

/** A speech model fails, or the gateway does not have it. */
export class SpeechFailed extends SvcError {
  override name = "SpeechFailed";
  override code = "asr_error";
}

/** The gateway or the registry has an internal error. */
export class InternalError extends SvcError {
  override name = "InternalError";
}

/** The registry has no such bundle. */
export class BundleNotFound extends SvcError {
  override name = "BundleNotFound";
  override code = "bundle_not_found";
  override status = 404;
}

/** The archive, its metadata, its hash or its signature is invalid. */
export class InvalidBundle extends SvcError {
  override name = "InvalidBundle";
  override code = "invalid_bundle";
  override status = 400;
}

/** Another bundle has this name. */
export class AlreadyExists extends SvcError {
  override name = "AlreadyExists";
  override code = "already_exists";
  override status = 409;
}

/** The disk of the server is full. */
export class InsufficientStorage extends SvcError {
  override name = "InsufficientStorage";
  override code = "insufficient_storage";
  override status = 507;
}

/** A registry fails, or its data does not match its index. */
export class RegistryFailed extends SvcError {
  override name = "RegistryFailed";
  override code = "registry_error";
  override status = 502;
}

/** The registry does not respond, or interrupts its response. */
export class RegistryUnreachable extends RegistryFailed {
  override name = "RegistryUnreachable";
}

/** The SDK cannot reach the gateway, the connection was lost, or the response is invalid. */
export class GatewayFailed extends SvcError {
  override name = "GatewayFailed";
  override code = "gateway_error";
  override status = 502;
}

/** A stage of a pipeline cannot run. */
export class PipelineFailed extends SvcError {
  override name = "PipelineFailed";
  override code = "pipeline_error";
}

/** The SDK is used wrongly: a definition or an option is wrong. */
export class UsageError extends SvcError {
  override name = "UsageError";
  override code = "usage_error";
  override status = 400;
}

type ErrorClass = new (message: string, details?: ErrorDetails) => SvcError;

function classOfCode(code: string): ErrorClass | undefined {
  switch (code) {
    case "invalid_request":
      return InvalidRequest;
    case "authentication_error":
      return AuthenticationFailed;
    case "permission_denied":
      return PermissionDenied;
    case "model_not_found":
      return ModelNotFound;
    case "not_found":
      return NotFound;
    case "method_not_allowed":
      return MethodNotAllowed;
    case "rate_limit_exceeded":
      return RateLimited;
    case "provider_error":
      return ProviderFailed;
    case "asr_error":
      return SpeechFailed;
    case "internal_error":
      return InternalError;
    case "bundle_not_found":
      return BundleNotFound;
    case "invalid_bundle":
      return InvalidBundle;
    case "already_exists":
      return AlreadyExists;
    case "insufficient_storage":
      return InsufficientStorage;
    case "registry_error":
      return RegistryFailed;
    case "gateway_error":
      return GatewayFailed;
    case "pipeline_error":
      return PipelineFailed;
    case "usage_error":
      return UsageError;
  }
  return undefined;
}

function classOfStatus(status: number): ErrorClass {
  switch (status) {
    case 401:
      return AuthenticationFailed;
    case 403:
      return PermissionDenied;
    case 404:
      return NotFound;
    case 405:
      return MethodNotAllowed;
    case 413:
      return TooLarge;
    case 429:
      return RateLimited;
    case 431:
      return HeadTooLarge;
  }
  return status >= 400 && status < 500 ? InvalidRequest : GatewayFailed;
}

/** Return the error for a code, or for the status if the code is unknown. */
export function errorFromCode(code: string | undefined, message: string, status = 0, details: ErrorDetails = {}): SvcError {
  const ofStatus = classOfStatus(status);
  let errorClass = classOfCode(code ?? "") ?? ofStatus;
  if (ofStatus.prototype instanceof errorClass) errorClass = ofStatus;
  return new errorClass(message || `The server returned status ${status}.`, details);
}

interface ErrorBody {
  error?: { message?: unknown; code?: unknown; param?: unknown };
}

/** Return the error for an error response. */
export function errorFromResponse(status: number, header: (name: string) => string | null, body: string): SvcError {
  let object: NonNullable<ErrorBody["error"]> = {};
  try {
    object = (JSON.parse(body) as ErrorBody | null)?.error ?? {};
  } catch {
    // Not the gateway's JSON. The status decides.
  }
  const text = (value: unknown): string | undefined => (typeof value === "string" ? value : undefined);
  const error = errorFromCode(text(object.code), text(object.message) ?? "", status, {
    param: text(object.param),
    requestId: header("x-request-id") ?? undefined,
  });
  error.status = status;
  if (error instanceof RateLimited) {
    error.retryAfter = parseRetryAfter(null, header("retry-after")) ?? 60;
  }
  return error;
}
