// SPDX-License-Identifier: Apache-2.0
#include "case/text_file.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <fstream>
#include <iostream>
#include <system_error>
#include <vector>

#include "case/case.hpp"

namespace shardwire {

std::string shown_name(const std::string& path) {
  return path == "-" ? "standard input" : path;
}

std::string read_text(const std::string& path, std::size_t most_bytes) {
  std::string text;
  const auto read_all = [&](std::istream& in) {
    std::vector<char> block(1u << 16);
    while (in && text.size() <= most_bytes) {
      in.read(block.data(), static_cast<std::streamsize>(block.size()));
      text.append(block.data(), static_cast<std::size_t>(in.gcount()));
    }
    if (in.bad()) throw CaseError(shown_name(path) + ": cannot be read");
  };
  if (path == "-") {
    read_all(std::cin);
  } else {
    std::ifstream file(path, std::ios::binary);
    if (!file) throw CaseError(fmt::format("{}: {}", path, std::generic_category().message(errno)));
    read_all(file);
  }
  return text;
}

}  // namespace shardwire
