// SPDX-License-Identifier: Apache-2.0
// Structs of the C API that programs with an older or a newer header pass.
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

#include "c/job.hpp"
#include "c/options.hpp"

BOOST_AUTO_TEST_SUITE(c_structs)

using namespace shardwire;
using namespace shardwire::test;

namespace {

constexpr unsigned char untouched = 0xee;

/// Memory in which a struct of any size may lie.
template <typename Struct>
struct Space {
  explicit Space(std::size_t size) : bytes(2 * sizeof(Struct), untouched) { init(size); }
  Struct& get() { return *reinterpret_cast<Struct*>(bytes.data()); }
  [[nodiscard]] bool untouched_from(std::size_t at) const {
    return std::all_of(bytes.begin() + static_cast<std::ptrdiff_t>(at), bytes.end(),
                       [](unsigned char byte) { return byte == untouched; });
  }
  void init(std::size_t size);

  std::vector<unsigned char> bytes;
};
template <>
void Space<shardwire_restore_options>::init(std::size_t size) {
  shardwire_restore_options_init(&get(), size);
}

}  // namespace

BOOST_AUTO_TEST_CASE(an_older_struct_is_not_written_behind_its_end) {
  const std::size_t size = offsetof(shardwire_restore_options, staging_bytes);
  Space<shardwire_restore_options> space(size);
  BOOST_TEST(space.get().size == size);
  BOOST_TEST(space.untouched_from(size));
}

BOOST_AUTO_TEST_CASE(fields_that_an_older_struct_lacks_have_their_defaults) {
  Space<shardwire_restore_options> space(offsetof(shardwire_restore_options, staging_bytes));
  space.get().step = 7;
  const RestoreOptions options = c_api::options_of(&space.get());
  const RestoreOptions defaults;
  BOOST_TEST(options.step.value() == 7);
  BOOST_TEST(options.staging_bytes == defaults.staging_bytes);
  BOOST_TEST(options.discovery_grace.count() == defaults.discovery_grace.count());
  BOOST_TEST(options.notice.count() == defaults.notice.count());
  BOOST_TEST((options.step_rule == StepRule::agreed));
  BOOST_TEST(!options.method.has_value());
  BOOST_TEST(!options.bind_only);
  BOOST_TEST(!options.stop_at_values);
}

BOOST_AUTO_TEST_CASE(a_newer_struct_is_read_as_far_as_the_library_knows_it) {
  Space<shardwire_restore_options> space(sizeof(shardwire_restore_options) + 16);
  BOOST_TEST(space.untouched_from(sizeof(shardwire_restore_options)));
  space.get().bind_only = true;
  BOOST_TEST(c_api::options_of(&space.get()).bind_only);
  space.get().stop_at_values = true;
  BOOST_TEST(c_api::options_of(&space.get()).stop_at_values);
}

BOOST_AUTO_TEST_CASE(defaults_are_those_of_the_cpp_api) {
  const RestoreOptions restore = c_api::options_of(static_cast<const shardwire_restore_options*>(nullptr));
  BOOST_TEST(restore.name == RestoreOptions().name);
  BOOST_TEST(!restore.step.has_value());
  BOOST_TEST(restore.timeout.count() == RestoreOptions().timeout.count());
  const SessionOptions session = c_api::options_of(static_cast<const shardwire_session_options*>(nullptr));
  BOOST_TEST(!session.staging_bytes.has_value());
  BOOST_TEST(!session.join_timeout.has_value());
  BOOST_TEST(session.progress.spin.count() == ProgressMode().spin.count());
  BOOST_TEST(!session.log);
  BOOST_TEST(!session.interrupted);
  BOOST_TEST(!session.telemetry.counter);
  const PublishOptions publish = c_api::options_of(static_cast<const shardwire_publish_options*>(nullptr));
  BOOST_TEST(publish.name == PublishOptions().name);
  BOOST_TEST(!publish.digest);
  const ExchangeOptions exchange = c_api::options_of(static_cast<const shardwire_exchange_options*>(nullptr));
  BOOST_TEST(exchange.timeout.count() == ExchangeOptions().timeout.count());
  BOOST_TEST(exchange.staging_bytes == ExchangeOptions().staging_bytes);
}

BOOST_AUTO_TEST_CASE(restores_are_asked_for_methods_between_processes_and_exchanges_for_rounds_too) {
  const auto asked = [](auto init, shardwire_method method) {
    auto options = initialized(init);
    options.method = method;
    return c_api::options_of(&options).method;
  };
  const auto refused = [](const Error& error) { return error.code() == ErrorCode::invalid_argument; };
  BOOST_TEST(!asked(shardwire_restore_options_init, SHARDWIRE_METHOD_ANY).has_value());
  for (shardwire_method method = SHARDWIRE_METHOD_MAPPED; method <= SHARDWIRE_METHOD_PACKED; ++method) {
    BOOST_TEST((to_method(asked(shardwire_restore_options_init, method).value()) == static_cast<Method>(method)));
    BOOST_TEST((to_method(asked(shardwire_exchange_options_init, method).value()) == static_cast<Method>(method)));
  }
  BOOST_TEST((asked(shardwire_exchange_options_init, SHARDWIRE_METHOD_COLLECTIVE) == ExchangeMethod::collective));
  for (const int method : {int{SHARDWIRE_METHOD_LOCAL}, int{SHARDWIRE_METHOD_COLLECTIVE}, -2}) {
    BOOST_CHECK_EXCEPTION(asked(shardwire_restore_options_init, method), Error, refused);
  }
  for (const int method : {int{SHARDWIRE_METHOD_LOCAL}, SHARDWIRE_METHOD_COUNT}) {
    BOOST_CHECK_EXCEPTION(asked(shardwire_exchange_options_init, method), Error, refused);
  }
}

BOOST_AUTO_TEST_CASE(the_method_of_a_restore_is_refused_by_name) {
  const Job job;
  const auto wanted = job.wanted();
  auto options = initialized(shardwire_restore_options_init);
  options.method = SHARDWIRE_METHOD_COLLECTIVE;
  shardwire_restore* restore = nullptr;
  fails(SHARDWIRE_INVALID_ARGUMENT, "method is 6, not 1..5", [&](auto error) {
    return shardwire_session_restore(job.session.get(), wanted.get(), &options, &restore, error);
  });
}

BOOST_AUTO_TEST_CASE(a_struct_that_was_not_initialised_is_refused) {
  const Job job;
  const auto wanted = job.wanted();
  shardwire_restore_options options{};
  shardwire_restore* restore = nullptr;
  fails(SHARDWIRE_INVALID_ARGUMENT, "shardwire_restore_options_init() has not initialised", [&](auto error) {
    return shardwire_session_restore(job.session.get(), wanted.get(), &options, &restore, error);
  });
}

BOOST_AUTO_TEST_CASE(a_struct_of_a_later_version_is_refused) {
  auto view = initialized(shardwire_view_init);
  view.version = 2;
  const auto tensor = vector_of_4();
  auto catalog = empty_catalog();
  fails(SHARDWIRE_UNSUPPORTED, "version 2", [&](auto error) {
    return shardwire_catalog_add(catalog.get(), &tensor, replicated().get(), &view, SHARDWIRE_ABSENT_ERROR, error);
  });
}

BOOST_AUTO_TEST_CASE(results_are_written_as_far_as_the_caller_knows_them) {
  const Job job;
  alignas(shardwire_usage) unsigned char memory[sizeof(shardwire_usage)];
  std::memset(memory, untouched, sizeof memory);
  auto* usage = reinterpret_cast<shardwire_usage*>(memory);
  shardwire_usage_init(usage, offsetof(shardwire_usage, registered_bytes));
  succeeds([&](auto error) { return shardwire_session_usage(job.session.get(), usage, error); });
  BOOST_TEST(usage->serving_budget_bytes > 0U);
  BOOST_TEST(memory[offsetof(shardwire_usage, registered_bytes)] == untouched);
}

BOOST_AUTO_TEST_SUITE_END()
