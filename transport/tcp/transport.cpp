// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <optional>
#include <random>
#include <utility>

#include "transport/bytes.hpp"
#include "transport/tcp/handles.hpp"
#include "transport/tcp/socket.hpp"

namespace shardwire::transport::tcp {
namespace {

constexpr std::uint64_t address_magic = 0x73736572646461ULL;

struct Address {
  std::uint64_t magic = address_magic;
  std::uint64_t fabric = 0;
};

std::uint64_t random_id() {
  std::random_device random;
  return std::uint64_t{random()} << 32 | random();
}

class TcpFabric final : public Fabric {
 public:
  explicit TcpFabric(std::optional<int> streams) : streams_(streams) {}
  ~TcpFabric() override { engine_->close(WallClock::now() + flush_limit); }
  TcpFabric(const TcpFabric&) = delete;
  TcpFabric& operator=(const TcpFabric&) = delete;

  [[nodiscard]] std::string_view name() const override { return "tcp"; }
  [[nodiscard]] std::string version() const override { return "tcp " + std::to_string(protocol_version); }
  [[nodiscard]] std::string domain() const override { return fmt::format("tcp protocol {}", protocol_version); }
  [[nodiscard]] SocketNeeds sockets() const override {
    return {SocketNeeds::Kind::network, streams_.value_or(1), streams_.value_or(max_streams), true};
  }
  [[nodiscard]] Bytes address() const override {
    Bytes out;
    append(out, Address{.fabric = id_});
    seal(out);
    return out;
  }

  using Fabric::allocate;
  std::unique_ptr<Region> allocate(ByteCount size_bytes, const MemoryPlace& place) override {
    return allocate_region(size_bytes, place);
  }
  std::unique_ptr<Region> adopt(const Memory& memory) override { return adopt_region(memory); }

  std::unique_ptr<Endpoint> connect(PeerAddress peer) override {
    auto body = unseal(peer.address);
    const auto address = body ? take<Address>(*body) : std::nullopt;
    if (!address || address->magic != address_magic || !body->empty()) {
      throw Error(ErrorCode::transport_failed, "not an address of the tcp transport");
    }
    if (peer.sockets.empty()) {
      throw Error(ErrorCode::unsupported, "the tcp transport reaches peers by sockets that it is given, and got none");
    }
    if (peer.sockets.size() > max_streams) {
      throw Error(ErrorCode::invalid_argument, fmt::format("the tcp transport was given {} sockets, {} are the most",
                                                           peer.sockets.size(), max_streams));
    }
    for (const OpenSocket& socket : peer.sockets) prepare(socket.descriptor.get());
    auto connection = std::make_shared<Connection>(*engine_, std::move(peer.sockets), id_, address->fabric);
    auto endpoint = make_endpoint(engine_, connection);
    connection->open();
    return endpoint;
  }

  void on_message(MessageHandler handler) override { engine_->handler = std::move(handler); }
  bool progress() override {
    const auto keep = engine_;  // a handler may destroy the fabric
    return keep->progress();
  }
  [[nodiscard]] int event_descriptor() const override { return engine_->descriptor(); }
  bool arm() override { return engine_->arm(); }

 private:
  std::optional<int> streams_;  // requested
  std::uint64_t id_ = random_id();
  std::shared_ptr<Engine> engine_ = std::make_shared<Engine>();  // owners: this and the endpoints
};

}  // namespace

std::unique_ptr<Fabric> open() {
  return std::make_unique<TcpFabric>(stream_count());
}

}  // namespace shardwire::transport::tcp
