// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include "transport/device_use.hpp"
#include "transport/read_check.hpp"
#include "transport/shm/handles.hpp"
#include "transport/silent_socket.hpp"

namespace shardwire::transport::shm {
namespace {

constexpr std::size_t max_ranges = 16'384;
constexpr int max_reads = 8;

}  // namespace

ShmEndpoint::ShmEndpoint(std::shared_ptr<Operations> operations, std::unique_ptr<PeerSocket> socket,
                         support::Fallback why_no_attach)
    : operations_(std::move(operations)),
      socket_(std::move(socket)),
      peer_(socket_->peer().pid),
      why_no_attach_(std::move(why_no_attach)),
      number_(operations_->add(*this, socket_->descriptor())) {
}

ShmEndpoint::~ShmEndpoint() {
  if (socket_) operations_->unwatch(socket_->descriptor());
  operations_->remove(number_);
}

void ShmEndpoint::send(ByteView /*header*/, std::span<const ConstMemory> /*payload*/, Completion /*done*/) {
  throw Error(ErrorCode::unsupported, "the shm transport has no messages");
}

std::unique_ptr<RemoteRegion> ShmEndpoint::import_region(RegionKey key, ByteCount size_bytes) {
  return shm::import_region(std::move(key), size_bytes, peer_);
}

void ShmEndpoint::read(const RemoteRegion& region, std::span<const ReadRange> ranges, Completion done) {
  if (!why_no_attach_.empty()) {
    throw Error(ErrorCode::unsupported, "memory of this peer cannot be read: " + why_no_attach_.detail);
  }
  const auto& remote = own_region<ShmRemote>(region);
  check_ranges(ranges, max_ranges, remote.size_bytes());
  if (remote.is_on_device()) throw Error(ErrorCode::unsupported, "read() of memory of a device");
  for (const ReadRange& range : ranges) {
    if (range.into.place.kind != MemoryKind::host) {
      throw Error(ErrorCode::invalid_argument, "read() into memory that the shm transport does not know");
    }
  }
  auto job = std::make_shared<Read>();
  job->endpoint = number_;
  if (failed()) {
    return operations_->post_fault(std::move(job), *failure_, std::move(done));
  }
  job->mapping = remote.mapping_;
  job->published = remote.published_;
  job->ranges.assign(ranges.begin(), ranges.end());
  operations_->post(std::move(job), std::move(done));
}

Path ShmEndpoint::path(const MemoryPlace& place) const {
  if (place.kind == MemoryKind::cuda) {
    support::Fallback why_not = why_no_device_memory();
    const bool maps = why_not.empty();
    return {
        .carrier = "CUDA IPC", .reach = Reach::host, .map = maps, .gpu_direct = maps, .why_not = std::move(why_not)};
  }
  Path path{.carrier = "shared memory",
            .reach = Reach::host,
            .map = true,
            .read = why_no_attach_.empty(),
            .max_read_ranges = max_ranges,
            .max_read_bytes = std::numeric_limits<ByteCount>::max(),
            .max_reads = max_reads};
  if (!path.read) path.why_not = "memory outside of arenas cannot be read: " + why_no_attach_;
  return path;
}

void ShmEndpoint::abort() {
  fail({ErrorCode::cancelled, "the connection was aborted from this side"});
}

void ShmEndpoint::watch() {
  if (!socket_) return;
  const std::string why = why_not_silent(socket_->descriptor());
  if (!why.empty()) fail({ErrorCode::peer_lost, why});
}

void ShmEndpoint::fail(Fault why) {
  if (failed()) return;
  failure_ = std::move(why);
  operations_->unwatch(socket_->descriptor());
  socket_.reset();
  operations_->fault(number_, *failure_);
}

}  // namespace shardwire::transport::shm
