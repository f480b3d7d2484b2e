// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>
#include <utility>

namespace shardwire::support {

/// Owns a file descriptor, or none.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() { reset(); }
  Descriptor(Descriptor&& other) noexcept : number_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    if (this != &other) reset(other.release());
    return *this;
  }
  [[nodiscard]] int get() const { return number_; }
  [[nodiscard]] int release() { return std::exchange(number_, -1); }
  void reset(int number = -1);
  explicit operator bool() const { return number_ >= 0; }

 private:
  int number_ = -1;
};

/// Whether this process may open `count` more file descriptors; the check opens at most one.
bool descriptors_left(int count);
/// Ensures that this process may open `count` more file descriptors; the check opens at most one. Call it before
/// libraries that end the process or wait for ever if they are refused one.
/// Errors: throws Error{out_of_resources} that reports too few for `what`.
void require_descriptors(int count, std::string_view what);

}  // namespace shardwire::support
