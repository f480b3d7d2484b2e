// SPDX-License-Identifier: Apache-2.0
#include "control/key_file.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "shardwire/error.hpp"
#include "support/descriptors.hpp"
#include "wire/messages.hpp"

namespace shardwire {

namespace {

constexpr std::size_t max_key_bytes = 4096;

[[noreturn]] void refuse(const std::string& named_by, const std::string& path, std::string_view why) {
  throw Error(ErrorCode::invalid_argument, fmt::format("{}: {}: {}", named_by, path, why));
}

// A group may read what the system owns: secrets are mounted into containers that way.
bool is_open_to_others(const struct stat& found) {
  const mode_t forbidden = found.st_uid == 0 ? S_IWGRP | S_IXGRP | S_IRWXO : S_IRWXG | S_IRWXO;
  return (found.st_mode & forbidden) != 0;
}

}  // namespace

Bytes read_key_file(const std::string& path, const std::string& named_by) {
  const support::Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat found {};
  if (!file || ::fstat(file.get(), &found) != 0) refuse(named_by, path, std::strerror(errno));
  if (S_ISDIR(found.st_mode)) refuse(named_by, path, std::strerror(EISDIR));
  if (!S_ISREG(found.st_mode)) refuse(named_by, path, "this is no regular file");
  Bytes key(max_key_bytes + 1);
  std::size_t size = 0;
  while (size < key.size()) {
    const auto got = ::read(file.get(), key.data() + size, key.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) refuse(named_by, path, std::strerror(errno));
    if (got == 0) break;
    size += static_cast<std::size_t>(got);
  }
  key.resize(size);
  if (key.empty()) refuse(named_by, path, "the file is empty");
  const auto seen =
      std::ranges::count_if(key, [](std::byte one) { return std::isspace(std::to_integer<int>(one)) == 0; });
  if (static_cast<std::size_t>(seen) < min_key_bytes) {
    refuse(named_by, path,
           fmt::format("a key of {} bytes can be guessed, {} are the least; 'shardwire key FILE' makes one", seen,
                       min_key_bytes));
  }
  if (size > max_key_bytes) refuse(named_by, path, fmt::format("a key has at most {} bytes", max_key_bytes));
  if (found.st_uid != 0 && found.st_uid != ::geteuid()) refuse(named_by, path, "it belongs to another user");
  if (is_open_to_others(found)) {
    refuse(named_by, path,
           fmt::format("other users can read or change it (mode {:03o}): chmod 600 it", found.st_mode & 0777U));
  }
  return key;
}

void make_key_file(const std::string& path) {
  const auto fail = [&](int reason) {
    throw Error(ErrorCode::invalid_argument, fmt::format("{}: {}", path, std::strerror(reason)));
  };
  wire::Digest key{};  // as many bytes
  if (::getrandom(key.data(), key.size(), 0) != static_cast<ssize_t>(key.size())) fail(errno);
  const std::string text = wire::to_hex(key) + '\n';
  const support::Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, S_IRUSR | S_IWUSR));
  if (!file) fail(errno);
  if (::write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()) && ::fsync(file.get()) == 0)
    return;
  const int reason = errno;
  ::unlink(path.c_str());
  fail(reason);
}

}  // namespace shardwire
