// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "c/arguments.hpp"
#include "shardwire/shardwire.h"

namespace shardwire::c_api {

// Set the fields of a new struct that have a default other than zero. A struct that grows also gets the next version.
void set_defaults(shardwire_bootstrap_fields& fields);
void set_defaults(shardwire_exchange_options& options);
void set_defaults(shardwire_publish_options& options);
void set_defaults(shardwire_restore_options& options);
void set_defaults(shardwire_session_options& options);
void set_defaults(shardwire_tensor& tensor);
void set_defaults(shardwire_view& view);
template <typename Struct>
void set_defaults(Struct&) {
}

/// A struct whose fields have their defaults, with the version that this library knows.
template <typename Struct>
Struct defaults() {
  Struct out{};
  out.size = sizeof out;
  out.version = 1;
  set_defaults(out);
  return out;
}

/// Copies what both sides know of a struct: the caller's may be older or newer.
template <typename Struct>
void copy_known(Struct* to, const Struct* from, std::size_t callers_size) {
  std::memcpy(to, from, std::min(callers_size, sizeof(Struct)));
}

template <typename Struct>
void initialize(Struct* target, std::size_t size) noexcept {
  if (target == nullptr) return;
  Struct known = defaults<Struct>();
  known.size = size;
  copy_known(target, &known, size);
}

/// Errors: throws Error{invalid_argument} if the caller did not initialise the struct, and Error{unsupported} if its
///         version is later than this library's.
template <typename Struct>
void check_initialized(const Struct* given, const char* name) {
  required(given, name);
  if (given->size < offsetof(Struct, version) + sizeof given->version || given->version == 0) {
    refuse(fmt::format("shardwire_{}_init() has not initialised this struct", name));
  }
  const std::uint32_t known = defaults<Struct>().version;
  if (given->version > known) {
    throw Error(ErrorCode::unsupported,
                fmt::format("{} has version {}; this library knows {}", name, given->version, known));
  }
}

/// The caller's struct; fields that it lacks have their defaults.
template <typename Struct>
Struct read(const Struct* given, const char* name) {
  check_initialized(given, name);
  Struct known = defaults<Struct>();
  copy_known(&known, given, given->size);
  return known;
}
/// The same; NULL stands for the defaults.
template <typename Struct>
Struct read_options(const Struct* given, const char* name) {
  return given ? read(given, name) : defaults<Struct>();
}

/// Writes `result` to a struct of the caller, whose header stays.
template <typename Struct>
void fill(Struct* target, Struct result, const char* name) {
  check_initialized(target, name);
  result.size = target->size;
  result.version = target->version;
  copy_known(target, &result, target->size);
}

}  // namespace shardwire::c_api
