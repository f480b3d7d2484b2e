// SPDX-License-Identifier: Apache-2.0
#include "c/bootstrap.hpp"

#include "c/callbacks.hpp"
#include "c/guard.hpp"
#include "c/structs.hpp"

namespace shardwire::c_api {
namespace {

void require_success(int status, const char* function, const std::string& key) {
  if (status == 0) return;
  throw Error(ErrorCode::transport_failed,
              fmt::format("{}() of the caller's store returned {} for key '{}'", function, status, key));
}

/// The fields of a caller, with the store of `before`.
Bootstrap with_fields(Bootstrap before, const shardwire_bootstrap_fields* fields) {
  const shardwire_bootstrap_fields given = read(fields, "bootstrap_fields");
  before.rank = given.rank;
  before.world_size = given.world_size;
  before.local_size = given.local_size;
  before.address = text(given.address, "address");
  before.port = given.port;
  before.interface = text(given.interface, "interface");
  before.job_key = bytes(given.job_key, given.job_key_bytes, "job_key");
  before.run_id = text(given.run_id, "run_id");
  before.allow_open_network = given.allow_open_network;
  before.guest = given.guest;
  return before;
}

/// Borrows the strings of `bootstrap`.
void copy_fields(const Bootstrap& bootstrap, shardwire_bootstrap_fields& out) {
  out.rank = bootstrap.rank;
  out.world_size = bootstrap.world_size;
  out.local_size = bootstrap.local_size;
  out.address = bootstrap.address.c_str();
  out.port = bootstrap.port;
  out.interface = bootstrap.interface.c_str();
  out.job_key = bootstrap.job_key.data();
  out.job_key_bytes = bootstrap.job_key.size();
  out.run_id = bootstrap.run_id.c_str();
  out.allow_open_network = bootstrap.allow_open_network;
  out.guest = bootstrap.guest;
}

}  // namespace

CallersStore::~CallersStore() {
  if (taken_ && store_.release) called_quietly([this] { store_.release(store_.context); });
}

void CallersStore::put(const std::string& key, const Bytes& value) {
  put_within(key, value, duration(INT64_MAX));
}

void CallersStore::put_within(const std::string& key, const Bytes& value, std::chrono::nanoseconds timeout) {
  const int status = called(
      "put", [&] { return store_.put(store_.context, key.c_str(), value.data(), value.size(), timeout.count()); });
  require_success(status, "put", key);
}

std::optional<Bytes> CallersStore::get(const std::string& key, std::chrono::nanoseconds timeout) {
  StoreAnswer answer;
  auto* handle = reinterpret_cast<shardwire_store_answer*>(&answer);
  const int status = called("get", [&] { return store_.get(store_.context, key.c_str(), timeout.count(), handle); });
  require_success(status, "get", key);
  return answer.take();
}

void set_defaults(shardwire_bootstrap_fields& fields) {
  static const Bootstrap known;
  copy_fields(known, fields);
}

SHARDWIRE_C_BEGIN

void shardwire_bootstrap_fields_init(shardwire_bootstrap_fields* fields, size_t size) {
  initialize(fields, size);
}

void shardwire_store_init(shardwire_store* store, size_t size) {
  initialize(store, size);
}

shardwire_code shardwire_store_answer_set(shardwire_store_answer* answer, const void* value, size_t value_bytes,
                                          shardwire_error** error) {
  return guarded(error, [&] { object(answer, "answer").set(bytes(value, value_bytes, "value")); });
}

void shardwire_bootstrap_free(shardwire_bootstrap* bootstrap) {
  destroy(bootstrap);
}

shardwire_code shardwire_bootstrap_create(const shardwire_bootstrap_fields* fields, shardwire_bootstrap** bootstrap,
                                          shardwire_error** error) {
  return create(bootstrap, error, [&] { return with_fields({}, fields); });
}

shardwire_code shardwire_bootstrap_from_env(shardwire_bootstrap** bootstrap, shardwire_error** error) {
  return create(bootstrap, error, [] { return bootstrap_from_env(); });
}

shardwire_code shardwire_bootstrap_from_store(const shardwire_store* store, int32_t rank, int32_t world_size,
                                              shardwire_bootstrap** bootstrap, shardwire_error** error) {
  return give(bootstrap, error, [&] {
    const shardwire_store given = read(store, "store");
    required(given.put, "put");
    required(given.get, "get");
    const auto shared = std::make_shared<CallersStore>(given);  // owners: as Bootstrap::store
    auto* made = owned<shardwire_bootstrap>([&] { return bootstrap_from_store(shared, rank, world_size); });
    shared->take_over();
    return made;
  });
}

shardwire_code shardwire_bootstrap_read(const shardwire_bootstrap* bootstrap, shardwire_bootstrap_fields* fields,
                                        shardwire_error** error) {
  return guarded(error, [&] {
    auto found = defaults<shardwire_bootstrap_fields>();
    copy_fields(object(bootstrap, "bootstrap"), found);
    fill(fields, found, "bootstrap_fields");
  });
}

shardwire_code shardwire_bootstrap_set(shardwire_bootstrap* bootstrap, const shardwire_bootstrap_fields* fields,
                                       shardwire_error** error) {
  return guarded(error, [&] {
    Bootstrap& target = object(bootstrap, "bootstrap");
    target = with_fields(target, fields);
  });
}

shardwire_code shardwire_world_size_from_env(int32_t* world_size, shardwire_error** error) {
  return give(world_size, error, [] { return world_size_from_env().value_or(0); });
}

SHARDWIRE_C_END

}  // namespace shardwire::c_api
