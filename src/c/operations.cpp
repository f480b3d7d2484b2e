// SPDX-License-Identifier: Apache-2.0
// Running operations: what retirements, restores and exchanges have in common, and what each has of its own.
#include "c/callbacks.hpp"
#include "c/guard.hpp"
#include "c/options.hpp"
#include "c/param_groups.hpp"
#include "c/report.hpp"

namespace shardwire::c_api {
namespace {

template <typename Operation>
shardwire_code wait_for_end(Operation* operation, shardwire_error** error) {
  return guarded(error, [&] { object(operation, "the operation").wait(); });
}

template <typename Operation>
shardwire_code wait_at_most(Operation* operation, int64_t timeout_ns, bool* done, shardwire_error** error) {
  return give(done, error, [&] { return object(operation, "the operation").wait_for(duration(timeout_ns)); });
}

template <typename Operation>
shardwire_code is_done(const Operation* operation, bool* done, shardwire_error** error) {
  return give(done, error, [&] { return object(operation, "the operation").poll(); });
}

template <typename Operation>
shardwire_code descriptor_of(Operation* operation, int* descriptor, shardwire_error** error) {
  return give(descriptor, error, [&] { return object(operation, "the operation").event_descriptor(); });
}

template <typename Operation>
shardwire_code call_when_done(Operation* operation, shardwire_done_callback callback, void* context,
                              shardwire_error** error) {
  return guarded(error, [&] {
    required(callback, "callback");
    object(operation, "the operation").on_done([=] { called_quietly([&] { callback(context); }); });
  });
}

template <typename Operation>
shardwire_code call_on_progress(Operation* operation, shardwire_progress_callback callback, void* context,
                                int64_t interval_ns, shardwire_error** error) {
  return guarded(error, [&] {
    required(callback, "callback");
    const auto on_progress = [=](const Progress& progress) {
      const shardwire_progress known = progress_of(progress);
      called("on_progress", [&] { callback(context, &known); });
    };
    object(operation, "the operation").on_progress(on_progress, duration(interval_ns));
  });
}

template <typename Operation>
shardwire_code cancel(Operation* operation, shardwire_error** error) {
  return guarded(error, [&] { object(operation, "the operation").cancel(); });
}

/// An operation whose results can be read. Errors: throws Error{invalid_argument} if it is still running.
template <typename Operation>
const ObjectOf<Operation>& ended(const Operation* operation) {
  const ObjectOf<Operation>& out = object(operation, "the operation");
  if (!out.poll()) refuse("the operation is still running: wait for its end first");
  return out;
}

const Restore& with_values(const shardwire_restore* restore) {
  const Restore& out = object(restore, "the restore");
  if (!out.values_ready()) refuse("the values have not arrived: wait for them first");
  return out;
}

}  // namespace

SHARDWIRE_C_BEGIN

void shardwire_retirement_free(shardwire_retirement* retirement) {
  destroy(retirement);
}
shardwire_code shardwire_retirement_wait(shardwire_retirement* retirement, shardwire_error** error) {
  return wait_for_end(retirement, error);
}
shardwire_code shardwire_retirement_wait_for(shardwire_retirement* retirement, int64_t timeout_ns, bool* done,
                                             shardwire_error** error) {
  return wait_at_most(retirement, timeout_ns, done, error);
}
shardwire_code shardwire_retirement_poll(const shardwire_retirement* retirement, bool* done, shardwire_error** error) {
  return is_done(retirement, done, error);
}
shardwire_code shardwire_retirement_event_descriptor(shardwire_retirement* retirement, int* descriptor,
                                                     shardwire_error** error) {
  return descriptor_of(retirement, descriptor, error);
}
shardwire_code shardwire_retirement_on_done(shardwire_retirement* retirement, shardwire_done_callback callback,
                                            void* context, shardwire_error** error) {
  return call_when_done(retirement, callback, context, error);
}

void shardwire_publication_free(shardwire_publication* publication) {
  destroy(publication);
}
shardwire_code shardwire_publication_retire(shardwire_publication* publication, int64_t timeout_ns,
                                            shardwire_error** error) {
  return guarded(error, [&] { object(publication, "publication").retire(duration(timeout_ns)); });
}
shardwire_code shardwire_publication_start_retire(shardwire_publication* publication, int64_t timeout_ns,
                                                  shardwire_retirement** retirement, shardwire_error** error) {
  return create(retirement, error,
                [&] { return object(publication, "publication").start_retire(duration(timeout_ns)); });
}
shardwire_code shardwire_publication_update(shardwire_publication* publication, const shardwire_catalog* held,
                                            int64_t step, shardwire_snapshot snapshot, int64_t timeout_ns,
                                            shardwire_error** error) {
  return guarded(error, [&] {
    object(publication, "publication").update(object(held, "held"), step, snapshot_of(snapshot), duration(timeout_ns));
  });
}

void shardwire_restore_free(shardwire_restore* restore) {
  destroy(restore);
}
shardwire_code shardwire_restore_wait(shardwire_restore* restore, shardwire_error** error) {
  return wait_for_end(restore, error);
}
shardwire_code shardwire_restore_wait_for(shardwire_restore* restore, int64_t timeout_ns, bool* done,
                                          shardwire_error** error) {
  return wait_at_most(restore, timeout_ns, done, error);
}
shardwire_code shardwire_restore_poll(const shardwire_restore* restore, bool* done, shardwire_error** error) {
  return is_done(restore, done, error);
}
shardwire_code shardwire_restore_wait_values(shardwire_restore* restore, shardwire_error** error) {
  return guarded(error, [&] { object(restore, "restore").wait_values(); });
}
shardwire_code shardwire_restore_values_ready(const shardwire_restore* restore, bool* ready, shardwire_error** error) {
  return give(ready, error, [&] { return object(restore, "restore").values_ready(); });
}
shardwire_code shardwire_restore_proceed(shardwire_restore* restore, shardwire_error** error) {
  return guarded(error, [&] { object(restore, "restore").proceed(); });
}
shardwire_code shardwire_restore_cancel(shardwire_restore* restore, shardwire_error** error) {
  return cancel(restore, error);
}
shardwire_code shardwire_restore_resume(shardwire_restore* restore, int64_t timeout_ns, shardwire_error** error) {
  return guarded(error, [&] { object(restore, "restore").resume(duration(timeout_ns)); });
}
shardwire_code shardwire_restore_event_descriptor(shardwire_restore* restore, int* descriptor,
                                                  shardwire_error** error) {
  return descriptor_of(restore, descriptor, error);
}
shardwire_code shardwire_restore_on_done(shardwire_restore* restore, shardwire_done_callback callback, void* context,
                                         shardwire_error** error) {
  return call_when_done(restore, callback, context, error);
}
shardwire_code shardwire_restore_on_progress(shardwire_restore* restore, shardwire_progress_callback callback,
                                             void* context, int64_t interval_ns, shardwire_error** error) {
  return call_on_progress(restore, callback, context, interval_ns, error);
}
shardwire_code shardwire_restore_report(const shardwire_restore* restore, const shardwire_report** report,
                                        shardwire_error** error) {
  return give(report, error, [&] { return borrowed<shardwire_report>(&ended(restore).report()); });
}
shardwire_code shardwire_restore_has_value(const shardwire_restore* restore, const char* fqn, const char* state,
                                           bool* has, shardwire_error** error) {
  return give(has, error, [&] { return with_values(restore).has_value(key_of(fqn, state)); });
}
shardwire_code shardwire_restore_value(const shardwire_restore* restore, const char* fqn, const char* state,
                                       const shardwire_value** value, shardwire_error** error) {
  return give(value, error, [&] { return borrowed<shardwire_value>(&with_values(restore).value(key_of(fqn, state))); });
}
shardwire_code shardwire_restore_param_groups(const shardwire_restore* restore, const shardwire_param_group* wanted,
                                              size_t count, shardwire_value** options, shardwire_error** error) {
  return create(options, error, [&] {
    return options_of(param_groups_of(with_values(restore), param_groups(array(wanted, count, "wanted"))));
  });
}

void shardwire_exchange_result_free(shardwire_exchange_result* result) {
  destroy(result);
}
const shardwire_report* shardwire_exchange_result_report(const shardwire_exchange_result* result) {
  return result ? borrowed<shardwire_report>(&peek(result)->report) : nullptr;
}
const shardwire_value* shardwire_exchange_result_value(const shardwire_exchange_result* result, const char* fqn,
                                                       const char* state) {
  return quietly<const shardwire_value*>(nullptr, [&]() -> const shardwire_value* {
    const auto& values = object(result, "result").values;
    const auto found = values.find(key_of(fqn, state));
    return found == values.end() ? nullptr : borrowed<shardwire_value>(&found->second);
  });
}

void shardwire_exchange_free(shardwire_exchange* exchange) {
  destroy(exchange);
}
shardwire_code shardwire_exchange_wait(shardwire_exchange* exchange, shardwire_error** error) {
  return wait_for_end(exchange, error);
}
shardwire_code shardwire_exchange_wait_for(shardwire_exchange* exchange, int64_t timeout_ns, bool* done,
                                           shardwire_error** error) {
  return wait_at_most(exchange, timeout_ns, done, error);
}
shardwire_code shardwire_exchange_poll(const shardwire_exchange* exchange, bool* done, shardwire_error** error) {
  return is_done(exchange, done, error);
}
shardwire_code shardwire_exchange_cancel(shardwire_exchange* exchange, shardwire_error** error) {
  return cancel(exchange, error);
}
shardwire_code shardwire_exchange_event_descriptor(shardwire_exchange* exchange, int* descriptor,
                                                   shardwire_error** error) {
  return descriptor_of(exchange, descriptor, error);
}
shardwire_code shardwire_exchange_on_done(shardwire_exchange* exchange, shardwire_done_callback callback, void* context,
                                          shardwire_error** error) {
  return call_when_done(exchange, callback, context, error);
}
shardwire_code shardwire_exchange_on_progress(shardwire_exchange* exchange, shardwire_progress_callback callback,
                                              void* context, int64_t interval_ns, shardwire_error** error) {
  return call_on_progress(exchange, callback, context, interval_ns, error);
}
shardwire_code shardwire_exchange_result_of(const shardwire_exchange* exchange,
                                            const shardwire_exchange_result** result, shardwire_error** error) {
  return give(result, error, [&] { return borrowed<shardwire_exchange_result>(&ended(exchange).result()); });
}

SHARDWIRE_C_END

}  // namespace shardwire::c_api
