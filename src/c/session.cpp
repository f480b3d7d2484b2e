// SPDX-License-Identifier: Apache-2.0
#include "shardwire/session.hpp"

#include "c/guard.hpp"
#include "c/job_layout.hpp"
#include "c/memory.hpp"
#include "c/options.hpp"
#include "c/report.hpp"
#include "c/structs.hpp"

namespace shardwire::c_api {
namespace {

std::vector<std::string> strings_of(std::span<const Bytes> values) {
  std::vector<std::string> out;
  for (const Bytes& value : values) out.emplace_back(reinterpret_cast<const char*>(value.data()), value.size());
  return out;
}

/// Gives a result that the caller may not want.
template <typename Handle, typename Make>
void give_if_asked_for(Handle** out, Make make) {
  if (out == nullptr) {
    make();
  } else {
    *out = owned<Handle>(make);
  }
}

}  // namespace

SHARDWIRE_C_BEGIN

void shardwire_session_free(shardwire_session* session) {
  destroy(session);
}

shardwire_code shardwire_session_join(const shardwire_bootstrap* bootstrap, const shardwire_session_options* options,
                                      shardwire_session** session, shardwire_error** error) {
  return create(session, error, [&] { return Session::join(object(bootstrap, "bootstrap"), options_of(options)); });
}

shardwire_code shardwire_session_close(shardwire_session* session, int64_t timeout_ns, shardwire_error** error) {
  return guarded(error, [&] { object(session, "session").close(duration(timeout_ns)); });
}

int32_t shardwire_session_rank(const shardwire_session* session) {
  return session ? peek(session)->rank() : 0;
}

int32_t shardwire_session_world_size(const shardwire_session* session) {
  return session ? peek(session)->world_size() : 0;
}

shardwire_code shardwire_session_transports(const shardwire_session* session, shardwire_strings** transports,
                                            shardwire_error** error) {
  return create(transports, error, [&] { return object(session, "session").transports(); });
}

shardwire_code shardwire_session_usage(const shardwire_session* session, shardwire_usage* usage,
                                       shardwire_error** error) {
  return guarded(error, [&] { fill(usage, usage_of(object(session, "session").usage()), "usage"); });
}

shardwire_code shardwire_session_allocate(shardwire_session* session, uint64_t arena_bytes, shardwire_memory_kind kind,
                                          int32_t device, shardwire_arena** arena, shardwire_error** error) {
  return create(arena, error,
                [&] { return object(session, "session").allocate(arena_bytes, memory_kind(kind), device); });
}

shardwire_code shardwire_session_register_memory(shardwire_session* session, const shardwire_view* view,
                                                 shardwire_registration** registration, shardwire_error** error) {
  return create(registration, error,
                [&] { return object(session, "session").register_memory(view_of(read(view, "view"))); });
}

shardwire_code shardwire_session_publish(shardwire_session* session, const shardwire_catalog* held,
                                         const shardwire_publish_options* options, shardwire_publication** publication,
                                         shardwire_error** error) {
  return create(publication, error,
                [&] { return object(session, "session").publish(object(held, "held"), options_of(options)); });
}

shardwire_code shardwire_session_restore(shardwire_session* session, const shardwire_catalog* wanted,
                                         const shardwire_restore_options* options, shardwire_restore** restore,
                                         shardwire_error** error) {
  return create(restore, error,
                [&] { return object(session, "session").restore(object(wanted, "wanted"), options_of(options)); });
}

shardwire_code shardwire_session_exchange(shardwire_session* session, const shardwire_catalog* held,
                                          const shardwire_catalog* wanted, const shardwire_exchange_options* options,
                                          shardwire_exchange_result** result, shardwire_error** error) {
  return guarded(error, [&] {
    give_if_asked_for(result, [&] {
      return object(session, "session").exchange(object(held, "held"), object(wanted, "wanted"), options_of(options));
    });
  });
}

shardwire_code shardwire_session_start_exchange(shardwire_session* session, const shardwire_catalog* held,
                                                const shardwire_catalog* wanted,
                                                const shardwire_exchange_options* options,
                                                shardwire_exchange** exchange, shardwire_error** error) {
  return create(exchange, error, [&] {
    return object(session, "session")
        .start_exchange(object(held, "held"), object(wanted, "wanted"), options_of(options));
  });
}

shardwire_code shardwire_session_gather(shardwire_session* session, const char* name, const void* value,
                                        size_t value_bytes, int64_t timeout_ns, shardwire_strings** values,
                                        shardwire_error** error) {
  return guarded(error, [&] {
    give_if_asked_for(values, [&] {
      return strings_of(object(session, "session")
                            .gather(text(name, "name"), bytes(value, value_bytes, "value"), duration(timeout_ns)));
    });
  });
}

shardwire_code shardwire_session_barrier(shardwire_session* session, int64_t timeout_ns, shardwire_error** error) {
  return guarded(error, [&] { object(session, "session").barrier(duration(timeout_ns)); });
}

shardwire_code shardwire_session_gather_layouts(shardwire_session* session, const shardwire_catalog* catalog,
                                                int64_t timeout_ns, shardwire_job_layout** layouts,
                                                shardwire_error** error) {
  return guarded(error, [&] {
    give_if_asked_for(layouts, [&] {
      return draft_of(object(session, "session").gather_layouts(object(catalog, "catalog"), duration(timeout_ns)));
    });
  });
}

SHARDWIRE_C_END

}  // namespace shardwire::c_api
