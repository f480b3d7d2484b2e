// SPDX-License-Identifier: Apache-2.0
// A process is a client of its launcher's PMIx server from the first use until it exits. An early PMIx_Finalize() would
// break MPI: Open MPI 4.1 cannot initialise after it (tried under mpirun and srun), and mpirun ends the job if a
// process exits without it. PMIx counts its users: an application that uses MPI is a second one.
#include <fmt/core.h>
#include <pmix.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "control/pmix.hpp"
#include "shardwire/error.hpp"
#include "support/fork.hpp"
#include "support/module_build.hpp"

namespace shardwire {
namespace {

using WallClock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds absent_interval(20);

[[noreturn]] void fail(const std::string& what, pmix_status_t status) {
  throw Error(ErrorCode::transport_failed, fmt::format("{}: {}", what, PMIx_Error_string(status)));
}

void check(pmix_status_t status, const char* what) {
  if (status != PMIX_SUCCESS) fail(what, status);
}

class Client {
 public:
  Client() {
    const pmix_status_t status = PMIx_Init(&self_, nullptr, 0);
    if (status != PMIX_SUCCESS) {
      fail("the launcher's PMIx server does not answer (PMIx_Init; MASTER_ADDR does without it)", status);
    }
  }
  // Not in a child of fork(): the threads of PMIx are the parent's.
  ~Client() {
    if (owner_.is_this()) PMIx_Finalize(nullptr, 0);
  }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  [[nodiscard]] const pmix_proc_t& self() const {
    if (!owner_.is_this()) {
      throw Error(
          ErrorCode::invalid_argument,
          fmt::format("PMIx is that of process {}, which has forked: this process needs MASTER_ADDR, or a store "
                      "of its own",
                      owner_.id()));
    }
    return self_;
  }

 private:
  support::OwningProcess owner_;
  pmix_proc_t self_{};
};

const pmix_proc_t& self() {
  static const Client client;
  return client.self();
}

pmix_proc_t process(pmix_rank_t rank) {
  pmix_proc_t one = self();
  one.rank = rank;
  return one;
}

/// A fact about the job, such as its size. Empty if the launcher does not provide it.
std::optional<int> fact(const char* key) {
  const pmix_proc_t job = process(PMIX_RANK_WILDCARD);
  pmix_value_t* value = nullptr;
  if (PMIx_Get(&job, key, nullptr, 0, &value) != PMIX_SUCCESS) return std::nullopt;
  std::optional<int> number;
  if (value->type == PMIX_UINT32) number = static_cast<int>(value->data.uint32);
  PMIX_VALUE_RELEASE(value);
  return number;
}

/// A requested value, with its status once PMIx has answered. PMIx drops a time-out once the server of another host
/// is asked (seen under mpirun 4.1.4), so the wait happens here.
struct PendingValue {
  std::mutex mutex;
  std::condition_variable came;
  bool there = false;
  pmix_status_t status = PMIX_SUCCESS;
  Bytes value;
};

/// Memory that PMIx borrows for one request until it has answered.
struct Asked {
  std::shared_ptr<PendingValue> answer;  // owners: the store and the request
#ifdef PMIX_GET_REFRESH_CACHE
  pmix_info_t refresh{};
#endif
};

void answered(pmix_status_t status, pmix_value_t* value, void* data) {
  const std::unique_ptr<Asked> asked(static_cast<Asked*>(data));
  PendingValue& answer = *asked->answer;
  const std::lock_guard lock(answer.mutex);
  answer.there = true;
  answer.status = status;
  if (status == PMIX_SUCCESS && value != nullptr && value->type == PMIX_BYTE_OBJECT) {
    const auto* begin = reinterpret_cast<const std::byte*>(value->data.bo.bytes);
    answer.value.assign(begin, begin + value->data.bo.size);
  }
  answer.came.notify_all();
}

/// Values that rank 0 of the job has put: its launcher delivers them on request, without a fence.
class PmixStore final : public KeyValueStore {
 public:
  void put(const std::string& key, const Bytes& bytes) override {
    Bytes copy = bytes;
    pmix_value_t value{};
    value.type = PMIX_BYTE_OBJECT;
    value.data.bo = {reinterpret_cast<char*>(copy.data()), copy.size()};
    self();
    check(PMIx_Put(PMIX_GLOBAL, key.c_str(), &value), "PMIx_Put");
    check(PMIx_Commit(), "PMIx_Commit");
  }

  // The server waits briefly until rank 0 has committed anything, not this key, so the request is repeated (seen under
  // mpirun 4.1.4; an application's MPI_Init() commits too).
  std::optional<Bytes> get(const std::string& key, std::chrono::nanoseconds timeout) override {
    const auto give_up = WallClock::now() + timeout;
    while (true) {
      std::shared_ptr<PendingValue>& asked = asked_[key];
      if (!asked) asked = ask(key);
      const std::shared_ptr<PendingValue> answer = asked;
      std::unique_lock lock(answer->mutex);
      if (!answer->came.wait_until(lock, give_up, [&] { return answer->there; })) return std::nullopt;
      asked.reset();
      if (answer->status == PMIX_SUCCESS) return answer->value;
      const bool absent = answer->status == PMIX_ERR_NOT_FOUND || answer->status == PMIX_ERR_TIMEOUT;
      if (!absent) fail(fmt::format("PMIx_Get of '{}' of rank 0", key), answer->status);
      const auto left = give_up - WallClock::now();
      if (left <= std::chrono::nanoseconds::zero()) return std::nullopt;
      std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(left, absent_interval));
    }
  }

 private:
  static std::shared_ptr<PendingValue> ask(const std::string& key) {
    const pmix_proc_t zero = process(0);
    const auto answer = std::make_shared<PendingValue>();
    auto asked = std::make_unique<Asked>();
    asked->answer = answer;
    pmix_info_t* info = nullptr;
#ifdef PMIX_GET_REFRESH_CACHE
    info = &asked->refresh;
    PMIX_INFO_CONSTRUCT(info);
    const bool yes = true;
    PMIX_INFO_LOAD(info, PMIX_GET_REFRESH_CACHE, &yes, PMIX_BOOL);
#endif
    Asked* const data = asked.release();  // owned by the callback
    const pmix_status_t status = PMIx_Get_nb(&zero, key.c_str(), info, info == nullptr ? 0 : 1, answered, data);
    if (status != PMIX_SUCCESS) answered(status, nullptr, data);
    return answer;
  }

  std::map<std::string, std::shared_ptr<PendingValue>> asked_;  // unanswered requests
};

PmixJob join() {
  const pmix_proc_t& me = self();
  const auto size = fact(PMIX_JOB_SIZE);
  if (!size) throw Error(ErrorCode::transport_failed, "PMIx does not give the number of processes of the job");
  return {.name_space = me.nspace,
          .rank = static_cast<int>(me.rank),
          .world_size = *size,
          .local_size = fact(PMIX_LOCAL_SIZE).value_or(0),
          .store = std::make_shared<PmixStore>()};
}

}  // namespace
}  // namespace shardwire

extern "C" {

[[gnu::visibility("default")]] const char* shardwire_module_build() {
  return shardwire::support::module_build;
}

[[gnu::visibility("default")]] const void* shardwire_module_table() {
  static constexpr shardwire::PmixModule table{shardwire::join};
  return &table;
}

}  // extern "C"
