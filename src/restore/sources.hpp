// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "restore/source.hpp"
#include "restore/verdict.hpp"

namespace shardwire::restore {

/// Progress of a source that moves no bytes.
SourceProgress progress_of(const Source& source, const Context& context);

/// A source was lost, or has withdrawn its publication.
using SourceEnded = std::function<void(const Source& source, const std::exception_ptr& error)>;

/// The sources of one plan, by index: binds all of them, confirms all of them, and releases them.
/// Threads: loop thread only.
class Sources final : private Source::Listener {
 public:
  /// A call may release the sources, but not destroy them.
  class Listener {
   public:
    /// Once after start(): each source is bound.
    virtual void on_all_bound() = 0;
    /// Once after confirm(): every byte of every source was read while its publication was live.
    virtual void on_all_confirmed() = 0;
    /// One source is unusable; others may follow. The others are bound and confirmed without it if continue_without() is
    /// called.
    virtual void on_source_lost(Source& source, const std::exception_ptr& error) = 0;

   protected:
    ~Listener() = default;
  };

  /// `bindings`: one per source. Ownership: borrows the context, listener and the objects in `paths`.
  Sources(const SourceContext& context, Listener& listener, const PathInputs& paths, const Source::Options& options,
          std::vector<Binding> bindings);

  /// Call it once. Errors: reported to the listener.
  void start(Source::Leasing leasing);
  /// `is_proven`: see Source::confirm(). Requires: all are bound.
  void confirm(const std::function<bool(const Source& source)>& is_proven);
  /// Awaits no report of a source that is lost.
  void continue_without(const Source& lost) { reported(lost.index()); }
  /// Starts and confirms no further source, and does not report that all are bound or confirmed.
  void stop() { stopped_ = true; }
  /// Returns the leases. Requires: no source is being read.
  void release();

  [[nodiscard]] std::span<const std::unique_ptr<Source>> all() const { return sources_; }
  [[nodiscard]] std::vector<const Binding*> bindings() const;
  /// For the next operation. Requires: released.
  std::vector<Binding> take_bindings();
  /// At least one was bound by this object, not by an earlier operation.
  [[nodiscard]] bool bound_anew() const;

 private:
  enum class Awaited : std::uint8_t { bound, confirmed };

  void on_bound(Source& source) override { reported(source.index()); }
  void on_lost(Source& source, const std::exception_ptr& error) override { listener_.on_source_lost(source, error); }
  void on_confirmed(Source& source) override { reported(source.index()); }
  void for_each(Awaited awaited, const std::function<void(Source&)>& step);
  void reported(std::size_t index);

  Listener& listener_;
  std::vector<std::unique_ptr<Source>> sources_;
  Awaited awaited_ = Awaited::bound;
  std::set<std::size_t> pending_;  // indexes of sources without a report, and the number of sources during for_each()
  bool stopped_ = false;
};

}  // namespace shardwire::restore
