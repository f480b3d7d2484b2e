// SPDX-License-Identifier: Apache-2.0
#include "support/descriptors.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <memory>

#include "shardwire/error.hpp"

namespace shardwire::support {
namespace {

// Whether the number `at` is free. The kernel assigns the lowest free number, so all above are normally free as well.
bool is_free(int at) {
  const int any = ::open("/", O_PATH | O_CLOEXEC);
  if (any < 0) return false;
  const int got = ::fcntl(any, F_DUPFD_CLOEXEC, at);
  ::close(any);
  if (got >= 0) ::close(got);
  return got == at;
}

// A large number if it cannot be determined.
long in_use() {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir("/proc/self/fd"), ::closedir);
  if (!folder) return 1L << 30;
  long entries = 0;
  while (::readdir(folder.get()) != nullptr) ++entries;
  return entries - 3;  // ".", ".." and the folder itself
}

}  // namespace

void Descriptor::reset(int number) {
  if (number_ >= 0) ::close(number_);
  number_ = number;
}

bool descriptors_left(int count) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return true;
  const auto most = static_cast<long>(limit.rlim_cur);
  return (most >= count && is_free(static_cast<int>(most - count))) || in_use() + count <= most;
}

void require_descriptors(int count, std::string_view what) {
  if (descriptors_left(count)) return;
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  throw Error(ErrorCode::out_of_resources,
              fmt::format("{}: {} more file descriptors are wanted, and {} in all are allowed (ulimit -n)", what, count,
                          limit.rlim_cur));
}

}  // namespace shardwire::support
