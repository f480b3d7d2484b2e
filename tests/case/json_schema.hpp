// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>

namespace shardwire::test {

/// Validates by a JSON Schema that has no keywords but those that the schema of case files needs.
class JsonSchema {
 public:
  using Json = nlohmann::json;

  explicit JsonSchema(std::string_view text) : root_(Json::parse(text)) {}
  [[nodiscard]] const Json& json() const { return root_; }
  /// Errors: throws std::logic_error naming an unknown keyword.
  [[nodiscard]] bool accepts(const Json& value) const { return accepts(root_, value); }

 private:
  [[nodiscard]] bool accepts(const Json& schema, const Json& value) const {
    if (schema.is_boolean()) return schema.get<bool>();
    for (const auto& [keyword, says] : schema.items()) {
      const bool holds = value.is_object() && knows_object(keyword) ? holds_for_object(keyword, says, schema, value)
                                                                    : holds_for_value(keyword, says, value);
      if (!holds) return false;
    }
    return true;
  }

  static bool knows_object(const std::string& keyword) {
    static const std::set<std::string> names{"required",      "properties",    "additionalProperties",
                                             "propertyNames", "minProperties", "dependentRequired"};
    return names.contains(keyword);
  }

  [[nodiscard]] bool holds_for_object(const std::string& keyword, const Json& says, const Json& schema,
                                      const Json& object) const {
    const auto has_all = [&](const Json& names) {
      return std::all_of(names.begin(), names.end(),
                         [&](const Json& name) { return object.contains(name.get<std::string>()); });
    };
    if (keyword == "required") return has_all(says);
    if (keyword == "minProperties") return object.size() >= says.get<std::size_t>();
    for (const auto& [name, value] : object.items()) {
      if (keyword == "propertyNames" && !accepts(says, name)) return false;
      if (keyword == "properties" && says.contains(name) && !accepts(says[name], value)) return false;
      if (keyword == "dependentRequired" && says.contains(name) && !has_all(says[name])) return false;
      const bool is_additional = !schema.contains("properties") || !schema["properties"].contains(name);
      if (keyword == "additionalProperties" && is_additional && !accepts(says, value)) return false;
    }
    return true;
  }

  [[nodiscard]] bool holds_for_value(const std::string& keyword, const Json& says, const Json& value) const {
    const auto by = [&](const Json& schema) { return accepts(schema, value); };
    const auto is = [&](const Json& type) { return has_type(type.get<std::string>(), value); };
    if (keyword == "$ref") return by(root_.at(Json::json_pointer(says.get<std::string>().substr(1))));
    if (keyword == "oneOf") return std::count_if(says.begin(), says.end(), by) == 1;
    if (keyword == "anyOf") return std::any_of(says.begin(), says.end(), by);
    if (keyword == "not") return !by(says);
    if (keyword == "const") return value == says;
    if (keyword == "enum") return std::find(says.begin(), says.end(), value) != says.end();
    if (keyword == "type") return says.is_array() ? std::any_of(says.begin(), says.end(), is) : is(says);
    if (keyword == "minimum") return !value.is_number() || value >= says;
    if (keyword == "maximum") return !value.is_number() || value <= says;
    if (keyword == "minLength") return !value.is_string() || value.get<std::string>().size() >= says;
    if (keyword == "pattern") {
      static std::map<std::string, std::regex> known;
      const auto pattern = says.get<std::string>();
      const std::regex& compiled = known.try_emplace(pattern, pattern).first->second;
      return !value.is_string() || std::regex_search(value.get<std::string>(), compiled);
    }
    if (keyword == "minItems") return !value.is_array() || value.size() >= says;
    if (keyword == "maxItems") return !value.is_array() || value.size() <= says;
    if (keyword == "uniqueItems")
      return !value.is_array() || std::set<Json>(value.begin(), value.end()).size() == value.size();
    if (keyword == "items") {
      return !value.is_array() ||
             std::all_of(value.begin(), value.end(), [&](const Json& item) { return accepts(says, item); });
    }
    static const std::set<std::string> silent{"$schema", "$defs", "title", "description", "default"};
    if (silent.contains(keyword) || knows_object(keyword)) return true;
    throw std::logic_error("unknown keyword: " + keyword);
  }

  static bool has_type(const std::string& type, const Json& value) {
    if (type != "integer") return type == (value.is_number() ? "number" : value.type_name());
    return value.is_number_integer() || (value.is_number() && std::trunc(value.get<double>()) == value.get<double>());
  }

  Json root_;
};

}  // namespace shardwire::test
