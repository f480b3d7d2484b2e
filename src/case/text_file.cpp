// SPDX-License-Identifier: Apache-2.0
#include "case/text_file.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <memory>
#include <system_error>
#include <vector>

#include "case/case.hpp"

namespace shardwire {
namespace {

[[noreturn]] void refuse(const std::string& path) {
  throw CaseError(fmt::format("{}: {}", shown_name(path), std::generic_category().message(errno)));
}

}  // namespace

std::string shown_name(const std::string& path) {
  return path == "-" ? "standard input" : path;
}

std::string read_text(const std::string& path, std::size_t max_bytes) {
  const auto close = [](std::FILE* file) {
    if (file != stdin) std::fclose(file);
  };
  const std::unique_ptr<std::FILE, decltype(close)> file(path == "-" ? stdin : std::fopen(path.c_str(), "rb"), close);
  if (file == nullptr) refuse(path);
  std::string text;
  std::vector<char> block(1u << 16);
  while (text.size() <= max_bytes) {
    const std::size_t got = std::fread(block.data(), 1, block.size(), file.get());
    text.append(block.data(), got);
    if (got == block.size()) continue;
    if (std::ferror(file.get()) != 0) refuse(path);
    break;
  }
  return text;
}

}  // namespace shardwire
