// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "transport/tcp/handles.hpp"

namespace shardwire::transport::tcp {
namespace {

class TcpEndpoint final : public Endpoint {
 public:
  TcpEndpoint(std::shared_ptr<Engine> engine, std::shared_ptr<Connection> connection)
      : engine_(std::move(engine)), connection_(std::move(connection)) {}
  ~TcpEndpoint() override { connection_->close(WallClock::now() + flush_limit); }
  TcpEndpoint(const TcpEndpoint&) = delete;
  TcpEndpoint& operator=(const TcpEndpoint&) = delete;

  using Endpoint::send;
  void send(ByteView header, std::span<const ConstMemory> payload, Completion done) override {
    if (header.size() > max_header_bytes) throw Error(ErrorCode::invalid_argument, "message header is too long");
    if (payload.size() > max_ranges) throw Error(ErrorCode::invalid_argument, "send() of too many ranges");
    for (const ConstMemory& range : payload) {
      if (range.place.kind == MemoryKind::host) continue;
      throw Error(ErrorCode::unsupported, "the tcp transport sends host memory only");
    }
    connection_->send(header, payload, std::move(done));
  }

  std::unique_ptr<RemoteRegion> import_region(RegionKey, ByteCount) override {
    throw Error(ErrorCode::transport_failed, "the tcp transport has no region keys");
  }
  void read(const RemoteRegion&, std::span<const ReadRange>, Completion) override {
    throw Error(ErrorCode::unsupported, "the tcp transport has no one-sided reads");
  }

  [[nodiscard]] bool failed() const override { return connection_->failed(); }
  [[nodiscard]] Path path(const MemoryPlace& place) const override {
    const bool host = place.kind == MemoryKind::host;
    return {
        .carrier = connection_->carrier(),
        .cost_name = connection_->encrypted() ? "tcp_encrypted" : "",
        .reach = connection_->on_host() ? Reach::host : Reach::network,
        .message = host,
        .max_message_ranges = max_ranges,
        .why_not = host ? support::Fallback{FallbackReason::by_design,
                                            "tcp neither maps memory nor reads it without its owner"}
                        : support::Fallback{FallbackReason::no_gpu_direct, "the tcp transport knows host memory only"}};
  }
  void abort() override { connection_->abort(); }

 private:
  std::shared_ptr<Engine> engine_;  // must outlive the connection
  std::shared_ptr<Connection> connection_;
};

}  // namespace

std::unique_ptr<Endpoint> make_endpoint(std::shared_ptr<Engine> engine, std::shared_ptr<Connection> connection) {
  return std::make_unique<TcpEndpoint>(std::move(engine), std::move(connection));
}

}  // namespace shardwire::transport::tcp
