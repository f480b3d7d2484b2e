// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "session/control/connection.hpp"
#include "session/control/listener.hpp"
#include "session/control/loop.hpp"
#include "session/source/publication.hpp"
#include "transport/transport.hpp"
#include "wire/messages.hpp"

namespace shardwire::test {

/// Memory that a restore may write to, and around it some that it may not.
class GuardedBytes {
 public:
  explicit GuardedBytes(std::size_t bytes) : all_(2 * guard_bytes + bytes, untouched) {}
  std::byte* data() { return all_.data() + guard_bytes; }
  [[nodiscard]] bool nothing_beside_is_written() const {
    const std::span<const std::byte> all(all_);
    const auto is_untouched = [](std::byte one) { return one == untouched; };
    return std::ranges::all_of(all.first(guard_bytes), is_untouched) &&
           std::ranges::all_of(all.last(guard_bytes), is_untouched);
  }

 private:
  static constexpr std::size_t guard_bytes = 1 << 20;
  static constexpr std::byte untouched{0x77};
  std::vector<std::byte> all_;
};

/// Member 1 of 2, which publishes generation 1 of "state" and serves it by hand: everything it says is true but what the test
/// answers to `bind` and to requests for bytes and digests.
class FalseSource {
 public:
  /// Answers one Bind, on the loop's thread.
  using Answer = std::function<void(Connection& reader, const wire::Bind& asked)>;
  using AnswerPack = std::function<void(Connection& reader, const wire::PackRequest& asked)>;
  using AnswerDigests = std::function<void(Connection& reader, const wire::DigestRequest& asked)>;

  /// Joins the job of whoever listens at `port`; the publication is announced when this returns.
  FalseSource(std::uint16_t port, const Catalog& held, const std::vector<std::string>& more_capabilities = {})
      : described_(describe(held)) {
    identity_.hello.rank = 1;
    identity_.hello.world_size = 2;
    identity_.hello.incarnation = 4711;
    identity_.hello.capabilities = {"packed", "digest", "strides", "straight", "confirm", "unleased", "withdrawn"};
    auto& capabilities = identity_.hello.capabilities;
    capabilities.insert(capabilities.end(), more_capabilities.begin(), more_capabilities.end());
    std::promise<void> joined;
    loop_.call([&] {
      const auto incoming = [this](support::Descriptor socket) { accept(std::move(socket)); };
      network_ = std::make_unique<Listener>(loop_, SocketAddress{"127.0.0.1", 0}, incoming);
      local_ = std::make_unique<Listener>(loop_, local_name(), incoming);
      ask_who_is_there(port, joined);
    });
    joined.get_future().get();
  }
  ~FalseSource() {
    loop_.call([&] {
      rendezvous_->drop();
      for (const auto& one : readers_) one->drop();
      rendezvous_.reset();
      readers_.clear();
      sockets_.clear();
      network_.reset();
      local_.reset();
    });
  }
  FalseSource(const FalseSource&) = delete;
  FalseSource& operator=(const FalseSource&) = delete;

  void answer_with(Answer answer) {
    loop_.call([&] { answer_ = std::move(answer); });
  }
  void answer_requests_with(AnswerPack pack, AnswerDigests digests) {
    loop_.call([&] {
      answer_pack_ = std::move(pack);
      answer_digests_ = std::move(digests);
    });
  }
  Loop& loop() { return loop_; }
  /// How often it was asked to bind.
  [[nodiscard]] int binds() {
    return loop_.call([&] { return binds_; });
  }
  /// The ends of the sockets of a token, in the order of their indexes. On the loop's thread.
  std::vector<support::Descriptor> take_sockets(std::uint64_t token) {
    std::vector<support::Descriptor> taken;
    for (auto& [index, socket] : sockets_[token]) taken.push_back(std::move(socket));
    sockets_.erase(token);
    return taken;
  }

 private:
  [[nodiscard]] static std::string local_name() { return "shardwire-test-" + std::to_string(::getpid()); }

  // Once for the host and the fabrics that the other has, which are said here as well; then for good.
  void ask_who_is_there(std::uint16_t port, std::promise<void>& joined) {
    Connection::Events events;
    events.ready = [this, port, &joined](Connection& connection) {
      identity_.hello.host = connection.peer().host;
      identity_.hello.fabrics = connection.peer().fabrics;
      const auto keep = std::exchange(rendezvous_, nullptr);
      keep->drop();
      join(port, joined);
    };
    events.message = [](Connection&, wire::Message&) {};
    rendezvous_ = Connection::connect(loop_, {"127.0.0.1", port}, identity_, std::move(events));
  }
  void join(std::uint16_t port, std::promise<void>& joined) {
    Connection::Events events;
    events.ready = [this](Connection& connection) {
      connection.send(wire::Join{{.rank = 1,
                                  .incarnation = identity_.hello.incarnation,
                                  .host = identity_.hello.host,
                                  .address = "127.0.0.1",
                                  .port = network_->address().port,
                                  .local_path = local_name()}});
    };
    events.message = [this, &joined](Connection& connection, wire::Message& message) {
      if (!std::holds_alternative<wire::Joined>(message)) return;
      connection.send(wire::Publish{"state",
                                    {.member = 1,
                                     .layout_rank = 0,
                                     .generation = 1,
                                     .manifest = described_.manifest_digest,
                                     .values = described_.values_digest}});
      joined.set_value();
    };
    rendezvous_ = Connection::connect(loop_, {"127.0.0.1", port}, identity_, std::move(events));
  }
  void accept(support::Descriptor socket) {
    Connection::Events events;
    events.message = [this](Connection& reader, wire::Message& message) {
      std::visit([&](const auto& one) { serve(reader, one); }, message);
    };
    events.closed = [this](Connection& reader, const Error&, bool) {
      std::erase_if(readers_, [&](const auto& one) { return one.get() == &reader; });
    };
    readers_.push_back(Connection::accept(loop_, std::move(socket), identity_, std::move(events)));
  }
  void serve(Connection& reader, const wire::ManifestRequest& asked) {
    reader.send(wire::ManifestReply{asked.digest, described_.encoded_manifest});
  }
  void serve(Connection& reader, const wire::ValuesRequest& asked) {
    reader.send(wire::ValuesReply{asked.digest, described_.encoded_values});
  }
  void serve(Connection& reader, const wire::Lease& asked) { reader.send(wire::Leased{asked.request, 1}); }
  void serve(Connection& reader, const wire::Release& asked) { reader.send(wire::Released{asked.request, true}); }
  void serve(Connection& reader, const wire::Confirm& asked) { reader.send(wire::Released{asked.request, true}); }
  void serve(Connection& reader, const wire::Bind& asked) {
    ++binds_;
    answer_(reader, asked);
  }
  void serve(Connection& reader, const wire::PackRequest& asked) {
    if (answer_pack_) answer_pack_(reader, asked);
  }
  void serve(Connection& reader, const wire::DigestRequest& asked) {
    if (answer_digests_) answer_digests_(reader, asked);
  }
  void serve(Connection& reader, const wire::Attach& attach) {
    reader.send(wire::Attached{});
    sockets_[attach.token][attach.index] = reader.release();
    const auto keep = reader.shared_from_this();
    std::erase_if(readers_, [&](const auto& one) { return one.get() == &reader; });
  }
  template <typename Other>
  void serve(Connection&, const Other&) {}

  DescribedCatalog described_;
  Identity identity_;
  Loop loop_;
  std::unique_ptr<Listener> network_;  // loop thread only, as all that follows
  std::unique_ptr<Listener> local_;
  std::shared_ptr<Connection> rendezvous_;                                        // owners: this and its own callbacks
  std::vector<std::shared_ptr<Connection>> readers_;                              // likewise
  std::map<std::uint64_t, std::map<std::uint8_t, support::Descriptor>> sockets_;  // by token and index
  Answer answer_;
  AnswerPack answer_pack_;
  AnswerDigests answer_digests_;
  int binds_ = 0;
};

}  // namespace shardwire::test
