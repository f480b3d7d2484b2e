// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <boost/test/unit_test.hpp>

#include <string>
#include <utility>

#include "shardwire/shardwire.h"
#include "support/job.hpp"

namespace shardwire::test {

/// Owns a handle of the C API.
template <typename T>
class Handle {
 public:
  explicit Handle(void (*free)(T*)) : free_(free) {}
  ~Handle() { free_(handle_); }
  Handle(Handle&& other) noexcept : free_(other.free_), handle_(std::exchange(other.handle_, nullptr)) {}
  Handle& operator=(Handle&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  T*& get() { return handle_; }
  T* get() const { return handle_; }

 private:
  void (*free_)(T*);
  T* handle_ = nullptr;
};

/// Checks that `call(shardwire_error**)` succeeds.
template <typename Call>
void succeeds(Call call) {
  Handle<shardwire_error> error(shardwire_error_free);
  const shardwire_code code = call(&error.get());
  BOOST_TEST_INFO(shardwire_error_message(error.get()));
  BOOST_TEST_REQUIRE(code == SHARDWIRE_OK);
}

/// Checks that it fails with this code and a message that contains `part`, also if nobody asks for the error.
template <typename Call>
void fails(shardwire_code expected, const std::string& part, Call call) {
  Handle<shardwire_error> error(shardwire_error_free);
  BOOST_TEST(call(&error.get()) == expected);
  BOOST_TEST(shardwire_error_code(error.get()) == expected);
  const std::string message = shardwire_error_message(error.get());
  BOOST_TEST_INFO(message);
  BOOST_TEST(message.find(part) != std::string::npos);
}

/// A struct as its function initialises it.
template <typename Struct>
Struct initialized(void (*initialize)(Struct*, std::size_t)) {
  Struct out;
  initialize(&out, sizeof out);
  return out;
}

inline shardwire_session_options session_options() {
  auto out = initialized(shardwire_session_options_init);
  out.transport = "loopback";
  return out;
}

/// f32 (4).
inline shardwire_tensor vector_of_4() {
  static constexpr std::int64_t shape[] = {4};
  auto out = initialized(shardwire_tensor_init);
  out.fqn = "w";
  out.state = "exp_avg";
  out.dtype = SHARDWIRE_F32;
  out.shape = shape;
  out.dims = 1;
  return out;
}

inline Handle<shardwire_layout> replicated() {
  Handle<shardwire_layout> out(shardwire_layout_free);
  succeeds([&](auto error) { return shardwire_layout_replicated(&out.get(), error); });
  return out;
}

inline Handle<shardwire_catalog> empty_catalog() {
  Handle<shardwire_catalog> out(shardwire_catalog_free);
  succeeds([&](auto error) { return shardwire_catalog_create(0, 1, &out.get(), error); });
  return out;
}

inline Handle<shardwire_catalog> catalog_with(float* data) {
  auto out = empty_catalog();
  auto view = initialized(shardwire_view_init);
  view.data = data;
  const auto tensor = vector_of_4();
  succeeds([&](auto error) {
    return shardwire_catalog_add(out.get(), &tensor, replicated().get(), &view, SHARDWIRE_ABSENT_ERROR, error);
  });
  return out;
}

/// A job of one member, which publishes four floats.
struct Job {
  explicit Job(const shardwire_session_options& options = session_options()) {
    auto fields = initialized(shardwire_bootstrap_fields_init);
    fields.port = free_port();
    Handle<shardwire_bootstrap> bootstrap(shardwire_bootstrap_free);
    succeeds([&](auto error) { return shardwire_bootstrap_create(&fields, &bootstrap.get(), error); });
    succeeds([&](auto error) { return shardwire_session_join(bootstrap.get(), &options, &session.get(), error); });
    const auto held = catalog_with(source);
    succeeds([&](auto error) {
      return shardwire_session_publish(session.get(), held.get(), nullptr, &publication.get(), error);
    });
  }
  Handle<shardwire_catalog> wanted() const { return catalog_with(target); }

  float source[4] = {1, 2, 3, 4};
  mutable float target[4] = {};
  Handle<shardwire_session> session{shardwire_session_free};
  Handle<shardwire_publication> publication{shardwire_publication_free};
};

}  // namespace shardwire::test
