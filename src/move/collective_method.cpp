// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "move/method.hpp"

namespace shardwire::move {

namespace {

class CollectiveMethod final : public MethodEngine {
 public:
  CollectiveMethod(std::shared_ptr<Shared> shared, CollectiveRounds* rounds)
      : shared_(std::move(shared)), rounds_(rounds) {}

  void add(const Transfer& transfer) override { transfers_.push_back(&transfer); }

  // Rounds take all transfers together. Without transfers too, since the other members wait for this statement.
  bool post(RateLimiter::WallClock::time_point) override {
    if (rounds_ == nullptr || std::exchange(posted_, true)) return false;
    for (const Transfer* transfer : transfers_) shared_->tally.began(Method::collective, transfer->peer);
    rounds_->begin(transfers_, [this, alive = std::weak_ptr<bool>(alive_)](bool received) {
      if (!alive.expired()) ended(received);
    });
    return true;
  }

  [[nodiscard]] bool idle() const override { return digesting_ == 0 && (rounds_ == nullptr || !rounds_->writing()); }

  std::vector<TransferPart> drop(std::uint32_t peer) override {
    if (posted_) return {};  // they come in rounds, whatever becomes of other paths to the peer
    std::vector<TransferPart> parts;
    for (const Transfer* transfer : transfers_) {
      if (transfer->peer == peer) parts.emplace_back(*transfer, transfer->box);
    }
    std::erase_if(transfers_, [&](const Transfer* transfer) { return transfer->peer == peer; });
    return parts;
  }

  void stop() override {
    if (rounds_ != nullptr) rounds_->stop();
  }

 private:
  void ended(bool received) {
    if (!shared_->stopped && !transfers_.empty()) {
      for (const Transfer* transfer : transfers_) shared_->tally.ended(Method::collective, transfer->peer);
      // If the rounds have failed, the exchange around them decides.
      if (received) shared_->guarded([this] { shared_->digests ? digest() : arrived(); });
    }
    shared_->events.changed();
  }

  // Of the bytes in place; the sources are asked for theirs as after any other method.
  void digest() {
    const bool on_devices =
        std::ranges::any_of(transfers_, [](const Transfer* one) { return one->target_device != memory::on_host; });
    auto copies = [transfers = transfers_](std::size_t index) {
      const Transfer& transfer = *transfers[index];
      return memory::QueuedCopy{
          memory::StridedCopy(transfer.box, transfer.wanted, memory::packed(transfer.box), transfer.item_bytes),
          transfer.target, nullptr, transfer.target_device};
    };
    shared_->copies.submit({.count = transfers_.size(),
                            .copy = std::move(copies),
                            .work = memory::CopyWork::digest,
                            .on_devices = on_devices},
                           [this, alive = std::weak_ptr<bool>(alive_)](const memory::CopyResult& result) {
                             if (alive.expired()) return;
                             --digesting_;
                             if (!shared_->stopped) digested(result);
                             shared_->events.changed();
                           });
    ++digesting_;
  }

  void digested(const memory::CopyResult& result) {
    if (result.error) return shared_->events.failed(result.error);
    shared_->digest_seconds += result.digest_seconds;
    for (std::size_t i = 0; i < transfers_.size(); ++i) {
      shared_->events.digested({*transfers_[i], transfers_[i]->box}, result.digests[i]);
    }
    arrived();
  }

  void arrived() {
    for (const Transfer* transfer : transfers_) shared_->tally.arrived(*transfer, bytes_of(*transfer));
  }

  std::shared_ptr<Shared> shared_;  // owners: the engine and its methods
  CollectiveRounds* rounds_;
  std::vector<const Transfer*> transfers_;
  bool posted_ = false;
  int digesting_ = 0;                                           // jobs that read the destination
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // owners: this; completions hold weak ones
};

}  // namespace

std::unique_ptr<MethodEngine> make_collective(std::shared_ptr<Shared> shared, CollectiveRounds* rounds) {
  return std::make_unique<CollectiveMethod>(std::move(shared), rounds);
}

}  // namespace shardwire::move
