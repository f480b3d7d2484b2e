// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>
#include <sys/utsname.h>

#include "support/boot_id.hpp"
#include "support/environment.hpp"
#include "transport/bytes.hpp"
#include "transport/shm/handles.hpp"

namespace shardwire::transport::shm {
namespace {

constexpr std::uint64_t address_magic = 0x726464612d6d6873ULL;

struct AddressRecord {
  std::uint64_t magic = address_magic;
  MarkAddress mark;
};

MarkAddress decode_address(ByteView address) {
  auto body = unseal(address);
  const auto record = body ? take<AddressRecord>(*body) : std::nullopt;
  if (!record || record->magic != address_magic || !body->empty()) {
    throw Error(ErrorCode::transport_failed, "not an address of the shm transport, or a garbled one");
  }
  return record->mark;
}

class ShmFabric final : public Fabric {
 public:
  ShmFabric() {
    if (support::variable("SHARDWIRE_ALLOW_ATTACH") == "1") allow_attach();
  }
  ~ShmFabric() override { operations_->close(); }
  ShmFabric(const ShmFabric&) = delete;
  ShmFabric& operator=(const ShmFabric&) = delete;

  [[nodiscard]] std::string_view name() const override { return "shm"; }
  [[nodiscard]] std::string version() const override {
    utsname kernel{};
    ::uname(&kernel);
    return fmt::format("shm 1 (Linux {})", kernel.release);
  }
  [[nodiscard]] std::string domain() const override { return "host " + support::boot_id(); }
  [[nodiscard]] Bytes address() const override {
    Bytes out;
    append(out, AddressRecord{.mark = {mark_.number(), mark_.address()}});
    seal(out);
    return out;
  }
  [[nodiscard]] SocketNeeds sockets() const override {
    return {.kind = SocketNeeds::Kind::local, .count = 1, .max_count = 1};
  }

  using Fabric::allocate;
  std::unique_ptr<Region> allocate(ByteCount size_bytes, const MemoryPlace& place) override {
    require_host_memory(place);
    return allocate_region(size_bytes);
  }
  std::unique_ptr<Region> adopt(const Memory& memory) override { return adopt_region(memory); }
  std::unique_ptr<Region> adopt_shared(std::shared_ptr<memory::SharedMemory> memory) override {
    return share_region(std::move(memory));
  }

  [[nodiscard]] bool adopts_unasked(const MemoryPlace& /*place*/) const override { return true; }

  std::unique_ptr<Endpoint> connect(PeerAddress peer) override {
    const MarkAddress mark = decode_address(peer.address);
    if (peer.sockets.size() != 1) {
      throw Error(ErrorCode::unsupported, fmt::format("the shm transport needs one connected local socket to its peer "
                                                      "and got {}",
                                                      peer.sockets.size()));
    }
    if (peer.sockets.front().encryption) throw Error(ErrorCode::unsupported, "the shm transport does not encrypt");
    auto socket = std::make_unique<PeerSocket>(std::move(peer.sockets.front().descriptor));
    support::Fallback why_not = why_no_attach(socket->peer(), mark);
    return std::make_unique<ShmEndpoint>(operations_, std::move(socket), std::move(why_not));
  }

  void on_message(MessageHandler /*handler*/) override {}  // no message ever arrives

  bool progress() override { return operations_->progress(); }
  [[nodiscard]] int event_descriptor() const override { return operations_->descriptor(); }
  bool arm() override { return operations_->arm(); }

 private:
  static void require_host_memory(const MemoryPlace& place) {
    if (place.kind == MemoryKind::host) return;
    throw Error(ErrorCode::unsupported, "the shm transport allocates host memory only");
  }

  Mark mark_;  // peers read it to find out whether attach works
  std::shared_ptr<Operations> operations_ = std::make_shared<Operations>();
};

}  // namespace

std::unique_ptr<Fabric> open() {
  return std::make_unique<ShmFabric>();
}

}  // namespace shardwire::transport::shm
