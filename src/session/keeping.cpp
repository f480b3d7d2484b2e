// SPDX-License-Identifier: Apache-2.0
#include "session/keeping.hpp"

#include <fmt/core.h>

#include <utility>

#include "memory/page_placement.hpp"
#include "memory/shared_memory.hpp"
#include "runtime/await.hpp"
#include "session/core.hpp"
#include "shardwire/error.hpp"
#include "wire/limits.hpp"

namespace shardwire {

namespace {

// Buffers are numbered within one connection.
bool is_there(Core& core, std::uint64_t connection) {
  return core.keeper().connected() && core.keeper().connections() == connection;
}

std::vector<Digest128> kept_digests(const PublishedDigests& digests) {
  std::vector<Digest128> all;
  for (const PublishedDigests::Tensor& tensor : digests.tensors) {
    all.insert(all.end(), tensor.digests.begin(), tensor.digests.end());
  }
  if (all.size() > wire::max_kept_digests) {
    throw Error(
        ErrorCode::out_of_resources,
        fmt::format("a keeper takes digests of {} blocks of a publication, which has {}: publish it without digests",
                    wire::max_kept_digests, all.size()));
  }
  return all;
}

}  // namespace

std::vector<std::uint64_t> KeptCopies::take_orphans(const Directory& directory, std::uint64_t connection) {
  std::vector<std::uint64_t> orphans;
  std::erase_if(copies_, [&](const auto& one) {
    const auto& [buffer, copy] = one;
    if (copy.connection != connection) return true;  // the keeper that knew it has ended
    if (directory.presence(copy.member) != wire::Presence::lost) return false;
    orphans.push_back(buffer);
    return true;
  });
  return orphans;
}

std::vector<std::uint64_t> KeptMemory::free(std::uint64_t connection) {
  const std::lock_guard lock(mutex_);
  if (std::exchange(connection_, connection) != connection) by_id_.clear();
  std::vector<std::uint64_t> ids;
  for (const auto& [id, memory] : by_id_) {
    if (memory.use_count() == 1) ids.push_back(id);
  }
  return ids;
}

KeptMemory::Memory KeptMemory::use(const wire::KeepBuffer& given, Memory fresh) {
  const std::lock_guard lock(mutex_);
  for (const std::uint64_t id : given.released) by_id_.erase(id);
  const std::uint64_t id = given.buffer;
  if (fresh) by_id_[id] = std::move(fresh);
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) {
    throw Error(ErrorCode::transport_failed, fmt::format("the keeper named buffer {}, which it has never sent", id));
  }
  return found->second;
}

Keeping::~Keeping() {
  if (!buffer_) return;
  memory_.reset();
  setup_.loop->post([&core = setup_.core, connection = connection_, quit = wire::KeepQuit{*buffer_, !mapped_}] {
    if (is_there(core, connection)) core.keeper().notify(quit);
  });
}

// The answer may come after an interruption has ended the wait for it: then nobody uses the buffer.
wire::KeepBuffer Keeping::ask(std::vector<support::Descriptor>& descriptors) {
  struct Asked {
    bool abandoned = false;
    std::optional<wire::KeepBuffer> given{};
    std::vector<support::Descriptor> descriptors{};
    std::uint64_t connection = 0;
  };
  const auto asked = std::make_shared<Asked>();  // owners: this call and the answer. Loop thread only until it has come
  Core* const core = &setup_.core;
  const auto take_back = [core](const Asked& one) {
    if (one.given && is_there(*core, one.connection)) core->keeper().notify(wire::KeepQuit{one.given->buffer, true});
  };
  Awaited<void> answered = begin_on<void>(*setup_.loop, [&](const Answer<void>& answer) {
    core->meet_keeper(
        [core, answer, asked, take_back, begin = begin_, kept = &setup_.kept](const std::exception_ptr& error) {
          if (error) return answer.fail(error);
          if (asked->abandoned) return;
          core->keeper().request(
              [&](std::uint64_t request) {
                wire::KeepBegin message = begin;
                message.request = request;
                message.free = kept->free(core->keeper().connections());
                return message;
              },
              [core, answer, asked, take_back](wire::Message* reply, const std::exception_ptr& failure) {
                if (failure) return answer.fail(failure);
                const auto* buffer = std::get_if<wire::KeepBuffer>(reply);
                if (buffer == nullptr) {
                  return answer.fail(std::make_exception_ptr(Error(
                      ErrorCode::transport_failed, "the keeper answered a request for memory with something else")));
                }
                asked->given = *buffer;
                asked->connection = core->keeper().connections();
                core->copies_of_others().forget(buffer->buffer);
                asked->descriptors = core->keeper().take_descriptors(buffer->descriptors);
                asked->abandoned ? take_back(*asked) : answer.give();
              });
        });
  });
  try {
    answered.take(setup_.interruption);
  } catch (...) {
    setup_.loop->post([asked, take_back] {
      asked->abandoned = true;
      take_back(*asked);
    });
    throw;
  }
  connection_ = asked->connection;
  descriptors = std::move(asked->descriptors);
  return *asked->given;
}

std::shared_ptr<detail::RegisteredMemory> Keeping::allocate(ByteCount bytes) {
  begin_.size_bytes = bytes;
  begin_.numa_node = memory::node_of_thread();
  const std::lock_guard asking(setup_.kept.one_at_a_time());
  std::vector<support::Descriptor> descriptors;
  const wire::KeepBuffer given = ask(descriptors);
  buffer_ = given.buffer;
  std::shared_ptr<detail::RegisteredMemory> fresh;
  if (!descriptors.empty() || given.size_bytes == 0) {
    auto shared = std::make_shared<memory::SharedMemory>(given.size_bytes, std::move(descriptors));
    shared->seal();  // this process writes, and nobody else
    fresh = setup_.memory.adopt_shared(std::move(shared));
  }
  memory_ = setup_.kept.use(given, std::move(fresh));
  mapped_ = true;
  if (memory_->memory().bytes < bytes) {
    throw Error(ErrorCode::transport_failed,
                fmt::format("the keeper gave {} bytes of memory instead of {}", memory_->memory().bytes, bytes));
  }
  return memory_;
}

wire::KeepDone kept_content(const detail::PublicationState& publication) {
  wire::KeepDone content{.manifest = publication.described.encoded_manifest,
                         .values = publication.described.encoded_values,
                         .tensors = {}};
  const std::byte* const begin = publication.snapshot->memory().address;
  for (const auto& tensor : publication.tensors) {
    const bool there = tensor.bytes > 0;
    content.tensors.push_back(
        {there ? static_cast<std::uint64_t>(tensor.data - begin) : 0, tensor.bytes, tensor.strides});
  }
  if (publication.digests) content.digests = kept_digests(*publication.digests);
  return content;
}

void Keeping::done(wire::KeepDone content) {
  content.buffer = *buffer_;
  Core* const core = &setup_.core;
  await<void>(*setup_.loop, setup_.interruption, [&](const Answer<void>& answer) {
    if (!is_there(*core, connection_)) {
      return answer.fail(std::make_exception_ptr(
          Error(ErrorCode::peer_lost, "the keeper of this host has ended while it was handed a publication")));
    }
    core->keeper().request(
        [&](std::uint64_t request) {
          content.request = request;
          return content;
        },
        [answer](wire::Message*, const std::exception_ptr& failure) {
          failure ? answer.fail(failure) : answer.give();
        });
  });
}

}  // namespace shardwire
