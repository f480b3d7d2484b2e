// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <string>

#include "transport/ucx/mapped_memory.hpp"
#include "transport/ucx/peer_connection.hpp"

namespace shardwire::transport::ucx {

/// A NIC that issues reads.
struct ReadingDevice {
  std::shared_ptr<Worker> worker;
  std::shared_ptr<DeviceTargets> targets;  ///< owners: this and its copies
  std::shared_ptr<const int> peers;        ///< its use count is the number of peers
};

/// A peer's key for the NIC, with the start address of its region.
class RemoteKey {
 public:
  /// Ownership: takes the handle; null for an empty region. `window`: of the channel that imported it.
  RemoteKey(std::shared_ptr<Worker> worker, std::shared_ptr<const ReadWindow> window, ucp_rkey_h handle,
            std::uint64_t begin)
      : worker_(std::move(worker)), window_(std::move(window)), handle_(handle), begin_(begin) {}
  ~RemoteKey() {
    if (handle_ != nullptr) ucp_rkey_destroy(handle_);
  }
  RemoteKey(const RemoteKey&) = delete;
  RemoteKey& operator=(const RemoteKey&) = delete;

  [[nodiscard]] const ReadWindow* window() const { return window_.get(); }
  [[nodiscard]] ucp_rkey_h handle() const { return handle_; }
  [[nodiscard]] std::uint64_t begin() const { return begin_; }

 private:
  std::shared_ptr<Worker> worker_;  // the worker that owns the key
  std::shared_ptr<const ReadWindow> window_;
  ucp_rkey_h handle_;
  std::uint64_t begin_;
};

/// One-sided reads from one peer through one NIC: an endpoint of a reading worker connected to the peer's serving
/// worker. A bounded number of reads is under way at a time; the rest is queued here.
class ReadChannel {
 public:
  /// `owner`: tags its operations in the worker. Errors: throws Error{unsupported} if the NIC does not reach the peer,
  /// or if UCX would read in software.
  ReadChannel(ReadingDevice device, ByteView peer, const void* owner);
  /// As abort(), but completions never run. Returns when nothing is written any more, or after half a second.
  ~ReadChannel();
  ReadChannel(const ReadChannel&) = delete;
  ReadChannel& operator=(const ReadChannel&) = delete;

  /// Errors: throws Error{transport_failed} for a key that no NIC has made, or a key for less than `size_bytes`.
  std::shared_ptr<const RemoteKey> import_key(ByteView key, ByteCount size_bytes);
  /// Posts as many as fit; post() posts the rest.
  void read(std::shared_ptr<const RemoteKey> key, std::span<const ReadRange> ranges, Completion done);
  void post();
  /// Whether post() would do anything.
  [[nodiscard]] bool may_post() const;
  /// Ends all reads with `why`. Their completions run once nothing is written any more.
  void abort(const Fault& why);

  [[nodiscard]] bool failed() const;
  /// Transport and NIC, such as "rc_verbs/mlx5_0:1".
  [[nodiscard]] const std::string& carrier() const { return carrier_; }

 private:
  /// Registers targets that lie on devices. A fault: registration failed.
  Outcome register_targets(ReadList& list) const;
  void post(Operation& list);
  void end_failed();
  void finish(Operation* list);

  ReadingDevice device_;
  std::shared_ptr<Worker> worker_ = device_.worker;
  const void* owner_;
  std::shared_ptr<ReadWindow> window_ = std::make_shared<ReadWindow>();  // owners: this and the lists of its worker
  std::deque<Operation*> waiting_;  // lists that are not completely posted; they cannot finish
  PeerConnection connection_;
  std::string carrier_;
  std::optional<int> peer_domain_;  // memory domain that its keys must contain
};

/// The key that a peer needs to read a region; without a mapping, of an empty region. Errors: throws Error.
Bytes encode_key(const MappedMemory* mapped, const Memory& memory);

}  // namespace shardwire::transport::ucx
