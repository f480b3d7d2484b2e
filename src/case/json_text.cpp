// SPDX-License-Identifier: Apache-2.0
// JSON text -> values, stricter than the JSON library's own reader.
#include <fmt/format.h>

#include <cctype>

#include "case/case.hpp"
#include "case/json_node.hpp"

namespace shardwire {
namespace {

constexpr std::size_t max_depth = 32;

// Builds the tree from events, because only events show repeated keys and the digits of an integer that does not fit.
class TreeBuilder : public nlohmann::json_sax<Json> {
 public:
  explicit TreeBuilder(const std::string& text) : text_(text) {}
  Json take() { return std::move(root_); }

  bool null() override { return put(Json()); }
  bool boolean(bool value) override { return put(Json(value)); }
  bool number_integer(number_integer_t value) override { return put(Json(value)); }
  bool number_unsigned(number_unsigned_t value) override { return put(Json(value)); }
  bool number_float(number_float_t value, const string_t& digits) override {
    // An integer beyond 64 bits arrives here rounded.
    if (digits.find_first_of(".eE") == std::string::npos) {
      throw CaseError(fmt::format("{}the integer {} does not fit 64 bits", here(), shortened(digits)));
    }
    return put(Json(value));
  }
  bool string(string_t& value) override { return put(Json(std::move(value))); }
  bool binary(binary_t&) override { return false; }

  bool start_object(std::size_t) override { return open(Json::object()); }
  bool key(string_t& name) override {
    Level& level = levels_.back();
    level.name = name;
    if (!level.value->emplace(name, nullptr).second) throw CaseError(here() + "the key stands twice");
    return true;
  }
  bool end_object() override { return close(); }
  bool start_array(std::size_t) override { return open(Json::array()); }
  bool end_array() override { return close(); }

  bool parse_error(std::size_t position, const std::string&, const Json::exception& error) override {
    std::string why = error.what();
    // "[json.exception...] parse error at line 1, column 2: ..." -> the text after the location, which we print
    // ourselves.
    if (const auto end = why.find("] "); end != std::string::npos) why.erase(0, end + 2);
    if (why.starts_with("parse error at ")) {
      if (const auto colon = why.find(": "); colon != std::string::npos) why.erase(0, colon + 2);
    }
    // The reader counts the character at which it failed.
    const std::size_t at = position == 0 ? 0 : std::min(position - 1, text_.size());
    const std::size_t line =
        static_cast<std::size_t>(std::count(text_.begin(), text_.begin() + static_cast<long>(at), '\n'));
    const std::size_t start = at == 0 ? std::string::npos : text_.rfind('\n', at - 1);
    const std::size_t column = start == std::string::npos ? at : at - start - 1;
    throw CaseError(fmt::format("{}:{}: {}", line + 1, column + 1, shortened(why)));
  }

 private:
  struct Level {
    Json* value;
    std::string name;  // key just read
  };

  static std::string shortened(const std::string& text) {
    constexpr std::size_t most = 200;
    return text.size() <= most ? text : text.substr(0, most) + "..";
  }

  std::string here() const {
    std::string path;
    for (const Level& level : levels_) {
      // An outer list already contains the element being read, the innermost does not.
      const std::size_t read = &level == &levels_.back() ? 0 : 1;
      path += level.value->is_array() ? fmt::format("[{}]", level.value->size() - read) : path_step(level.name);
    }
    if (path.starts_with('.')) path.erase(0, 1);
    return path.empty() ? path : path + ": ";
  }

  Json* place(Json&& value) {
    if (levels_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Level& level = levels_.back();
    if (level.value->is_array()) {
      level.value->push_back(std::move(value));
      return &level.value->back();
    }
    Json& slot = (*level.value)[level.name];
    slot = std::move(value);
    return &slot;
  }

  bool put(Json&& value) {
    place(std::move(value));
    return true;
  }
  bool open(Json&& empty) {
    if (levels_.size() == max_depth) throw CaseError(here() + "nested too deeply");
    Json* value = place(std::move(empty));
    levels_.push_back({value, {}});
    return true;
  }
  bool close() {
    levels_.pop_back();
    return true;
  }

  const std::string& text_;
  Json root_;
  std::vector<Level> levels_;
};

}  // namespace

Json parse_json(const std::string& text) {
  TreeBuilder builder(text);
  Json::sax_parse(text, &builder);
  return builder.take();
}

std::string path_step(std::string_view name) {
  const auto plain = [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == '-' || c == '*'; };
  if (!name.empty() && name.size() <= 200 && std::all_of(name.begin(), name.end(), plain))
    return std::string(1, '.').append(name);
  // dump() escapes line breaks.
  return fmt::format("[{}]",
                     Json(std::string(name.substr(0, 200))).dump(-1, ' ', true, Json::error_handler_t::replace));
}

}  // namespace shardwire
