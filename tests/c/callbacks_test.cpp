// SPDX-License-Identifier: Apache-2.0
// Callbacks of the C API: exceptions that callers in C++ throw, the caller's store, and owners.
#include <boost/test/unit_test.hpp>

#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "c/job.hpp"

BOOST_AUTO_TEST_SUITE(c_callbacks)

using namespace shardwire::test;

namespace {

[[noreturn]] void throw_number() {
  throw 7;
}
[[noreturn]] void throw_text() {
  throw std::runtime_error("of the caller");
}

/// A store that is a map, and counts.
struct Store {
  std::map<std::string, std::string> values;
  int status = 0;
  int released = 0;

  static int put(void* context, const char* key, const void* value, size_t size, int64_t) {
    auto& store = *static_cast<Store*>(context);
    store.values[key] = std::string(static_cast<const char*>(value), size);
    return store.status;
  }
  static int get(void* context, const char* key, int64_t, shardwire_store_answer* answer) {
    auto& store = *static_cast<Store*>(context);
    const auto found = store.values.find(key);
    if (found == store.values.end()) return 0;
    return shardwire_store_answer_set(answer, found->second.data(), found->second.size(), nullptr);
  }
  static void release(void* context) { ++static_cast<Store*>(context)->released; }

  shardwire_store interface() {
    auto out = initialized(shardwire_store_init);
    out.context = this;
    out.put = put;
    out.get = get;
    out.release = release;
    return out;
  }
};

Handle<shardwire_bootstrap> bootstrap_of(const shardwire_store& store, int rank, int members) {
  Handle<shardwire_bootstrap> out(shardwire_bootstrap_free);
  succeeds([&](auto error) { return shardwire_bootstrap_from_store(&store, rank, members, &out.get(), error); });
  auto fields = initialized(shardwire_bootstrap_fields_init);
  succeeds([&](auto error) { return shardwire_bootstrap_read(out.get(), &fields, error); });
  BOOST_TEST(fields.rank == rank);
  fields.interface = "127.0.0.1";
  succeeds([&](auto error) { return shardwire_bootstrap_set(out.get(), &fields, error); });
  return out;
}

Handle<shardwire_session> join(const shardwire_bootstrap* bootstrap) {
  const auto options = session_options();
  Handle<shardwire_session> out(shardwire_session_free);
  succeeds([&](auto error) { return shardwire_session_join(bootstrap, &options, &out.get(), error); });
  return out;
}

void refuses_to_join(const shardwire_bootstrap* bootstrap, shardwire_code code, const std::string& part) {
  const auto options = session_options();
  shardwire_session* session = nullptr;
  fails(code, part, [&](auto error) { return shardwire_session_join(bootstrap, &options, &session, error); });
  BOOST_TEST(session == nullptr);
}

}  // namespace

BOOST_AUTO_TEST_CASE(members_meet_through_a_store_of_the_caller) {
  Store store;
  {
    const auto first = join(bootstrap_of(store.interface(), 0, 2).get());
    const auto second = join(bootstrap_of(store.interface(), 1, 2).get());
    BOOST_TEST(shardwire_session_rank(second.get()) == 1);
    BOOST_TEST(store.values.size() == 1U);
  }
  BOOST_TEST(store.released == 2);
}

BOOST_AUTO_TEST_CASE(a_failing_store_ends_the_join) {
  Store store;
  store.status = 5;
  refuses_to_join(bootstrap_of(store.interface(), 0, 2).get(), SHARDWIRE_TRANSPORT_FAILED,
                  "put() of the caller's store returned 5");
}

BOOST_AUTO_TEST_CASE(an_exception_of_a_store_ends_the_join) {
  Store store;
  auto interface = store.interface();
  interface.get = [](void*, const char*, int64_t, shardwire_store_answer*) -> int { throw_text(); };
  refuses_to_join(bootstrap_of(interface, 1, 2).get(), SHARDWIRE_CANCELLED, "get threw: of the caller");
}

BOOST_AUTO_TEST_CASE(a_store_that_was_refused_is_not_released) {
  Store store;
  auto interface = store.interface();
  interface.get = nullptr;
  shardwire_bootstrap* out = nullptr;
  fails(SHARDWIRE_INVALID_ARGUMENT, "get is NULL",
        [&](auto error) { return shardwire_bootstrap_from_store(&interface, 0, 1, &out, error); });
  BOOST_TEST(store.released == 0);
}

BOOST_AUTO_TEST_CASE(an_exception_of_a_progress_callback_ends_the_restore) {
  const Job job;
  const auto wanted = job.wanted();
  auto options = initialized(shardwire_restore_options_init);
  options.name = "nobody publishes this";  // it runs until the callback is there
  Handle<shardwire_restore> restore(shardwire_restore_free);
  succeeds([&](auto error) {
    return shardwire_session_restore(job.session.get(), wanted.get(), &options, &restore.get(), error);
  });
  const auto callback = [](void*, const shardwire_progress*) { throw_number(); };
  succeeds([&](auto error) { return shardwire_restore_on_progress(restore.get(), callback, nullptr, 0, error); });
  fails(SHARDWIRE_CANCELLED, "on_progress threw",
        [&](auto error) { return shardwire_restore_wait(restore.get(), error); });
}

BOOST_AUTO_TEST_CASE(an_exception_of_an_interruption_ends_the_call) {
  auto options = session_options();
  options.interrupted = [](void*) -> bool { throw_text(); };
  const Job job(options);
  shardwire_inventory* inventory = nullptr;
  fails(SHARDWIRE_CANCELLED, "interrupted threw: of the caller", [&](auto error) {
    return shardwire_session_await_step(job.session.get(), "nothing", 1, INT64_MAX, &inventory, error);
  });
}

BOOST_AUTO_TEST_CASE(what_a_session_counts_goes_to_the_callbacks) {
  std::map<std::string, double> counted;
  auto options = session_options();
  options.telemetry_context = &counted;
  options.counter = [](void* context, const shardwire_metric_update* update) {
    std::string series = update->name;
    for (size_t i = 0; i < update->attribute_count; ++i) {
      series.append(" ").append(update->attributes[i].key).append("=").append(update->attributes[i].value);
    }
    auto& values = *static_cast<std::map<std::string, double>*>(context);
    values[series] += update->value;
    values["size"] = static_cast<double>(update->size);
    values["version"] = update->version;
  };
  options.histogram = options.counter;
  options.gauge = [](void*, const shardwire_metric_update*) { throw_number(); };
  {
    const Job job(options);
    BOOST_TEST(counted.at("shardwire.publication.size shardwire.snapshot=none") == 16);
    BOOST_TEST(counted.at("shardwire.restore.needed") == 0);
    BOOST_TEST(counted.at("shardwire.publish.duration shardwire.snapshot=none") > 0);
    BOOST_TEST(counted.at("size") == sizeof(shardwire_metric_update));
    BOOST_TEST(counted.at("version") == 1);
  }
  BOOST_TEST(counted.at("shardwire.publication.size shardwire.snapshot=none") == 0);
}

BOOST_AUTO_TEST_CASE(an_exception_of_a_done_callback_goes_no_further) {
  const Job job;
  const auto wanted = job.wanted();
  Handle<shardwire_restore> restore(shardwire_restore_free);
  succeeds([&](auto error) {
    return shardwire_session_restore(job.session.get(), wanted.get(), nullptr, &restore.get(), error);
  });
  succeeds([&](auto error) { return shardwire_restore_wait(restore.get(), error); });
  int called = 0;
  const auto callback = [](void* context) {
    ++*static_cast<int*>(context);
    throw_number();
  };
  succeeds([&](auto error) { return shardwire_restore_on_done(restore.get(), callback, &called, error); });
  BOOST_TEST(called == 1);
}

BOOST_AUTO_TEST_CASE(an_owner_is_released_once_and_only_if_it_was_taken) {
  int released = 0;
  auto view = initialized(shardwire_view_init);
  float data[4] = {};
  view.data = data;
  view.owner = &released;
  view.release = [](void* owner) {
    ++*static_cast<int*>(owner);
    throw_number();
  };
  auto tensor = vector_of_4();
  const auto layout = replicated();
  auto catalog = empty_catalog();
  tensor.dtype = SHARDWIRE_DTYPE_NONE;
  fails(SHARDWIRE_INVALID_ARGUMENT, "", [&](auto error) {
    return shardwire_catalog_add(catalog.get(), &tensor, layout.get(), &view, SHARDWIRE_ABSENT_ERROR, error);
  });
  BOOST_TEST(released == 0);
  tensor.dtype = SHARDWIRE_F32;
  succeeds([&](auto error) {
    return shardwire_catalog_add(catalog.get(), &tensor, layout.get(), &view, SHARDWIRE_ABSENT_ERROR, error);
  });
  {
    Handle<shardwire_catalog> copy(shardwire_catalog_free);
    succeeds([&](auto error) { return shardwire_catalog_copy(catalog.get(), &copy.get(), error); });
  }
  BOOST_TEST(released == 0);
  catalog = Handle<shardwire_catalog>(shardwire_catalog_free);
  BOOST_TEST(released == 1);
}

BOOST_AUTO_TEST_CASE(who_may_join_and_what_is_encrypted_can_be_asked_for) {
  auto fields = initialized(shardwire_bootstrap_fields_init);
  BOOST_TEST(!fields.allow_open_network);
  BOOST_TEST(!fields.guest);
  fields.world_size = 2;
  fields.port = free_port();
  fields.allow_open_network = true;
  fields.guest = true;
  Handle<shardwire_bootstrap> bootstrap(shardwire_bootstrap_free);
  succeeds([&](auto error) { return shardwire_bootstrap_create(&fields, &bootstrap.get(), error); });
  auto read = initialized(shardwire_bootstrap_fields_init);
  succeeds([&](auto error) { return shardwire_bootstrap_read(bootstrap.get(), &read, error); });
  BOOST_TEST(read.allow_open_network);
  BOOST_TEST(read.guest);
  auto options = initialized(shardwire_session_options_init);
  BOOST_TEST(!options.encrypt_payload);
  options.encrypt_payload = true;
  shardwire_session* session = nullptr;
  fails(SHARDWIRE_INVALID_ARGUMENT, "encrypt_payload needs a job key",
        [&](auto error) { return shardwire_session_join(bootstrap.get(), &options, &session, error); });
}

BOOST_AUTO_TEST_SUITE_END()
