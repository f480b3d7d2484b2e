// SPDX-License-Identifier: Apache-2.0
#include "case/safetensors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <set>
#include <system_error>

#include "case/case.hpp"
#include "case/json_node.hpp"
#include "case/text_file.hpp"

namespace shardwire {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t max_index_bytes = 64u << 20;
constexpr std::uint64_t max_header_bytes = 100'000'000;  // the limit of the format

// The header of a file: eight bytes of length, little-endian, then JSON.
std::string read_header(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw CaseError(std::generic_category().message(errno));
  unsigned char digits[8] = {};
  std::uint64_t bytes = 0;
  if (!file.read(reinterpret_cast<char*>(digits), sizeof digits))
    throw CaseError("the file ends within its first 8 bytes");
  for (int i = 7; i >= 0; --i) bytes = bytes << 8U | digits[i];
  if (bytes > max_header_bytes)
    throw CaseError(fmt::format("a header of {} bytes: this is no safetensors file", bytes));
  std::string text;
  constexpr std::uint64_t block = 1u << 20;  // so that memory grows with the file, not with what it says
  while (text.size() < bytes) {
    const std::size_t before = text.size();
    text.resize(before + std::min(block, bytes - before));
    if (!file.read(text.data() + before, static_cast<std::streamsize>(text.size() - before))) {
      throw CaseError(fmt::format("the file ends within its header of {} bytes", bytes));
    }
  }
  return text;
}

struct HeaderEntry {
  Extents shape;
  bool of_integers = false;
};

std::map<std::string, HeaderEntry> read_file(const fs::path& path) {
  std::map<std::string, HeaderEntry> entries;
  try {
    const Json json = parse_json(read_header(path));
    for (const auto& [name, node] : Node(json, "").members()) {
      if (name == "__metadata__") continue;
      const std::string dtype = node.at("dtype").text();
      entries[name] = {node.at("shape").shape(std::numeric_limits<Extent>::max()),
                       dtype.starts_with('I') || dtype.starts_with('U') || dtype == "BOOL"};
    }
  } catch (const CaseError& error) {
    throw CaseError(fmt::format("{}: {}", path.string(), error.what()));
  }
  return entries;
}

// "layers.10." comes after "layers.9.": runs of digits are compared as numbers.
bool comes_before(std::string_view a, std::string_view b) {
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  const auto number = [&](std::string_view& text) {
    const auto end = std::ranges::find_if_not(text, digit);
    const std::string_view digits = text.substr(0, static_cast<std::size_t>(end - text.begin()));
    text.remove_prefix(digits.size());
    return digits.substr(std::min(digits.find_first_not_of('0'), digits.size()));
  };
  while (!a.empty() && !b.empty()) {
    if (digit(a.front()) && digit(b.front())) {
      const std::string_view left = number(a);
      const std::string_view right = number(b);
      if (left != right) return left.size() != right.size() ? left.size() < right.size() : left < right;
      continue;
    }
    if (a.front() != b.front()) return a.front() < b.front();
    a.remove_prefix(1);
    b.remove_prefix(1);
  }
  return a.size() < b.size();
}

}  // namespace

Checkpoint load_checkpoint(const std::string& index) {
  const std::string text = read_text(index, max_index_bytes);
  Checkpoint checkpoint;
  try {
    if (text.size() > max_index_bytes) throw CaseError("1:1: an index has at most 64 MiB");
    const Json json = parse_json(text);
    std::map<std::string, std::map<std::string, HeaderEntry>> files;
    for (const auto& [name, node] : Node(json, "").at("weight_map").members()) {
      const std::string file = node.name();
      auto known = files.find(file);
      if (known == files.end()) known = files.emplace(file, read_file(fs::path(index).parent_path() / file)).first;
      const auto entry = known->second.find(name);
      if (entry == known->second.end()) node.refuse(fmt::format("{} has no tensor of this name", file));
      if (entry->second.of_integers) {
        ++checkpoint.left_out;
      } else {
        checkpoint.tensors.push_back({.fqn = name, .shape = entry->second.shape});
      }
    }
    if (checkpoint.tensors.empty()) throw CaseError("weight_map: no tensor");
  } catch (const CaseError& error) {
    throw CaseError(fmt::format("{}: {}", shown_name(index), error.what()));
  }
  std::ranges::sort(checkpoint.tensors, comes_before, &CaseTensor::fqn);
  return checkpoint;
}

}  // namespace shardwire
