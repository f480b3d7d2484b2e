// SPDX-License-Identifier: Apache-2.0
#include "c/error.hpp"

#include <exception>
#include <new>

#include "c/guard.hpp"
#include "c/report.hpp"

namespace shardwire::c_api {

static_assert(code_of(ErrorCode::invalid_argument) == SHARDWIRE_INVALID_ARGUMENT);
static_assert(code_of(ErrorCode::internal) == SHARDWIRE_INTERNAL);
static_assert(code_of(ErrorCode::step_mismatch) == SHARDWIRE_STEP_MISMATCH);
static_assert(code_of(ErrorCode::corrupt) == SHARDWIRE_CORRUPT);

shardwire_gap gap_of(const Gap& gap) {
  return {{gap.fqn.c_str(), gap.state.c_str()}, box_of(gap.box), to_int(gap.target)};
}

std::vector<shardwire_gap> gaps_of(std::span<const Gap> gaps) {
  std::vector<shardwire_gap> out;
  for (const Gap& gap : gaps) out.push_back(gap_of(gap));
  return out;
}

ErrorRecord::ErrorRecord(const Error& error)
    : code(code_of(error.code())),
      retryable(error.retryable()),
      message(error.what()),
      ranks(numbers(error.ranks())),
      described(error.gaps()),
      gaps(gaps_of(described)),
      report(error.report()) {
}

ErrorRecord::ErrorRecord(ErrorCode number, std::string text)
    : code(code_of(number)), retryable(false), message(std::move(text)) {
}

namespace {

/// The error when there is no memory to describe another. Its text is short enough to need none itself.
ErrorRecord& out_of_memory() {
  static ErrorRecord record(ErrorCode::out_of_resources, "out of memory");
  return record;
}

shardwire_code describe(ErrorRecord* record, shardwire_error** error) {
  *error = reinterpret_cast<shardwire_error*>(record);
  return record->code;
}

shardwire_code describe(const Error& failure, shardwire_error** error) {
  return error ? describe(new ErrorRecord(failure), error) : code_of(failure.code());
}

/// Errors: throws std::bad_alloc.
shardwire_code describe_current(shardwire_error** error) {
  try {
    throw;
  } catch (const Error& known) {
    return describe(known, error);
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& other) {
    return describe(Error(ErrorCode::internal, other.what()), error);
  } catch (...) {
    return describe(Error(ErrorCode::internal, "an exception of an unknown type"), error);
  }
}

}  // namespace

shardwire_code failure(shardwire_error** error) noexcept {
  try {
    return describe_current(error);
  } catch (const std::bad_alloc&) {
    return error ? describe(&out_of_memory(), error) : SHARDWIRE_OUT_OF_RESOURCES;
  }
}

SHARDWIRE_C_BEGIN

const char* shardwire_code_name(shardwire_code code) {
  if (code == SHARDWIRE_OK) return "ok";
  return to_string(static_cast<ErrorCode>(code - 1)).data();
}

void shardwire_error_free(shardwire_error* error) {
  if (peek(error) != &out_of_memory()) destroy(error);
}

shardwire_code shardwire_error_code(const shardwire_error* error) {
  return error ? peek(error)->code : SHARDWIRE_OK;
}

const char* shardwire_error_message(const shardwire_error* error) {
  return error ? peek(error)->message.c_str() : "";
}

bool shardwire_error_retryable(const shardwire_error* error) {
  return error && peek(error)->retryable;
}

const int32_t* shardwire_error_ranks(const shardwire_error* error, size_t* count) {
  return data_of(error ? &peek(error)->ranks : nullptr, count);
}

const shardwire_gap* shardwire_error_gaps(const shardwire_error* error, size_t* count) {
  return data_of(error ? &peek(error)->gaps : nullptr, count);
}

const shardwire_report* shardwire_error_report(const shardwire_error* error) {
  return error && peek(error)->report ? borrowed<shardwire_report>(peek(error)->report.get()) : nullptr;
}

SHARDWIRE_C_END

}  // namespace shardwire::c_api
