// SPDX-License-Identifier: Apache-2.0
#include "transport/libfabric/endpoint.hpp"

#include <fmt/core.h>

#include <limits>
#include <utility>

#include "transport/read_check.hpp"
#include "transport/silent_socket.hpp"

namespace shardwire::transport::libfabric {
namespace {

constexpr std::size_t max_read_ranges = 4096;
constexpr int max_reads = 8;
constexpr int descriptors_of_channel = 16;  // queues of two layers, a connection, a listener

struct LibfabricRemote final : RemoteRegion {
  LibfabricRemote(const RemoteKey& its_key, ByteCount bytes) : key(its_key), size_bytes(bytes) {}
  [[nodiscard]] ConstMemory mapped() const override { return {}; }

  RemoteKey key;
  ByteCount size_bytes;
};

}  // namespace

WatchedSocket::WatchedSocket(support::Descriptor socket, const WakeDescriptor& wake)
    : wake_(wake), socket_(std::move(socket)) {
  wake_.listen(socket_.get());
}

WatchedSocket::~WatchedSocket() {
  wake_.unlisten(socket_.get());
}

LibfabricEndpoint::LibfabricEndpoint(std::shared_ptr<FabricState> state, std::shared_ptr<Endpoints> all, Address peer,
                                     support::Descriptor socket)
    : state_(std::move(state)),
      all_(std::move(all)),
      peer_(std::move(peer)),
      socket_(std::make_unique<WatchedSocket>(std::move(socket), state_->wake)) {
  all_->push_back(this);
}

LibfabricEndpoint::~LibfabricEndpoint() {
  close();
  std::erase(*all_, this);
}

void LibfabricEndpoint::close() {
  end({ErrorCode::cancelled, "the endpoint to the peer was closed"});
  channel_.reset();
  state_->finished.forget(this);
}

void LibfabricEndpoint::send(ByteView /*header*/, std::span<const ConstMemory> /*payload*/, Completion /*done*/) {
  throw Error(ErrorCode::unsupported, "the libfabric transport has no messages");
}

std::unique_ptr<RemoteRegion> LibfabricEndpoint::import_region(RegionKey key, ByteCount size_bytes) {
  const RemoteKey remote = decode_key(key.bytes, size_bytes, peer_.fabric, state_->domain->rules());
  if (gone_) throw Error(ErrorCode::peer_lost, gone_->message);
  if (!channel_) {
    support::require_descriptors(descriptors_of_channel, "reading a peer by libfabric");
    channel_ = std::make_unique<ReadChannel>(state_, peer_.name, this);
  }
  return std::make_unique<LibfabricRemote>(remote, size_bytes);
}

void LibfabricEndpoint::read(const RemoteRegion& region, std::span<const ReadRange> ranges, Completion done) {
  const auto& remote = own_region<LibfabricRemote>(region);
  check_ranges(ranges, max_read_ranges, remote.size_bytes);
  watch();
  if (gone_) return state_->finished.add(this, std::move(done), gone_);
  if (!channel_) throw Error(ErrorCode::invalid_argument, "read() from a region of another endpoint");
  channel_->read(remote.key, ranges, std::move(done));
}

Path LibfabricEndpoint::path(const MemoryPlace& place) const {
  const Rules& rules = state_->domain->rules();
  const bool host = place.kind == MemoryKind::host;
  Path path{.carrier = fmt::format("{}/{}", rules.provider, rules.device)};
  if (!host) {
    if (std::string why = state_->gpus->why_not(place.device); !why.empty()) {
      path.why_not = {FallbackReason::no_gpu_direct, std::move(why)};
      return path;
    }
  }
  path.gpu_direct = !host;
  path.read = true;
  path.reads_need_peer = !rules.hardware;
  path.max_read_ranges = max_read_ranges;
  path.max_read_bytes = std::numeric_limits<ByteCount>::max();
  path.max_reads = max_reads;
  path.why_not = {FallbackReason::by_design,
                  rules.hardware ? "a NIC reads memory and does not map it"
                                 : fmt::format("{} has reads answered by the peer's processor", rules.provider)};
  return path;
}

void LibfabricEndpoint::abort() {
  end({ErrorCode::cancelled, "the connection was aborted from this side"});
}

bool LibfabricEndpoint::watch() {
  if (gone_) return false;
  const std::string why = why_not_silent(socket_->descriptor());
  if (!why.empty()) end({ErrorCode::peer_lost, why});
  return gone_.has_value();
}

void LibfabricEndpoint::end(const Fault& why) {
  if (gone_) return;
  gone_ = why;
  socket_.reset();
  if (channel_) channel_->end(why);
}

}  // namespace shardwire::transport::libfabric
