// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shardwire/box.hpp"
#include "shardwire/types.hpp"

namespace shardwire {

using Json = nlohmann::json;

/// For messages: in quotes and in ASCII.
inline std::string quoted(const std::string& text) {
  return Json(text).dump(-1, ' ', true, Json::error_handler_t::replace);
}

/// Parses strictly: repeated keys, integers beyond 64 bits, numbers beyond double and deep nesting are refused.
/// Errors: throws CaseError.
Json parse_json(const std::string& text);

/// `name` as a step of a path, such as ".row" or "[\"a.b\"]"; never breaks a line.
std::string path_step(std::string_view name);

/// A JSON value and its path: every refusal names the location.
/// Ownership: borrows the value.
class Node {
 public:
  Node(const Json& value, std::string place) : value_(&value), place_(std::move(place)) {}

  [[noreturn]] void refuse(const std::string& why) const;
  /// For a text that is not one of `known`, a list with commas. `what`: "dtype". `meant`: what `given` may be another name for;
  /// empty: nothing.
  [[noreturn]] void refuse_unknown(std::string_view what, const std::string& given, std::string_view known,
                                   std::string_view meant = {}) const;
  [[nodiscard]] const Json& json() const { return *value_; }
  [[nodiscard]] const std::string& place() const { return place_; }

  /// Refuses a value that is not an object, and fields that are not listed.
  void require_fields(std::initializer_list<std::string_view> allowed) const;
  void require_object() const;
  [[nodiscard]] bool has(const char* field) const { return value_->contains(field); }
  [[nodiscard]] std::optional<Node> find(const char* field) const;
  [[nodiscard]] Node at(const char* field) const;
  [[nodiscard]] std::vector<std::pair<std::string, Node>> members() const;
  [[nodiscard]] std::vector<Node> elements() const;

  [[nodiscard]] Extent integer(Extent least, Extent most) const;
  /// Extents of at most max_dims dims. Each is at most `most`.
  [[nodiscard]] Extents shape(Extent most) const;
  [[nodiscard]] double number(double least, double most) const;
  [[nodiscard]] bool boolean() const;
  [[nodiscard]] std::string text() const;
  /// A text that is not empty and contains no NUL.
  [[nodiscard]] std::string name() const;

 private:
  [[nodiscard]] std::string place_of(std::string_view field) const;

  const Json* value_;
  std::string place_;
};

}  // namespace shardwire
