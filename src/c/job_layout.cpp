// SPDX-License-Identifier: Apache-2.0
#include "c/job_layout.hpp"

#include <algorithm>
#include <numeric>

#include "c/guard.hpp"
#include "c/structs.hpp"
#include "c/tensor.hpp"

namespace shardwire::c_api {

JobDraft draft_of(const JobLayout& job) {
  JobDraft out{job.ranks};
  out.copies = numbers(job.copies);
  for (const Section& section : job.sections) out.sections.push_back({numbers(section.ranks), *section.manifest});
  return out;
}

JobLayout job_of(const JobDraft& draft) {
  JobLayout out{draft.ranks, {}, ranks(draft.copies.data(), draft.copies.size(), "copies")};
  for (const JobDraft::Section& section : draft.sections) {
    out.sections.push_back({std::make_shared<const Manifest>(section.manifest),
                            ranks(section.ranks.data(), section.ranks.size(), "ranks")});
  }
  return out;
}

namespace {

std::vector<std::int32_t> sorted_ranks(std::span<const std::int32_t> given, int ranks) {
  std::vector<std::int32_t> out(given.begin(), given.end());
  if (out.empty()) {
    out.resize(static_cast<std::size_t>(ranks));
    std::iota(out.begin(), out.end(), 0);
  }
  std::sort(out.begin(), out.end());
  return out;
}

Manifest& manifest_of(shardwire_job_layout* job, size_t section) {
  return entry(object(job, "job").sections, section, "section").manifest;
}

/// Manifests list aliases in ascending order.
void add_alias(std::vector<Alias>& aliases, Alias alias) {
  const auto place = std::ranges::lower_bound(aliases, alias.alias, {}, &Alias::alias);
  if (place != aliases.end() && place->alias == alias.alias) {
    refuse(fmt::format("'{}' is already an alias of '{}'", alias.alias, place->fqn));
  }
  aliases.insert(place, std::move(alias));
}

const JobDraft::Section* section_of(const shardwire_job_layout* job, size_t section) {
  return job && section < peek(job)->sections.size() ? &peek(job)->sections[section] : nullptr;
}

}  // namespace

SHARDWIRE_C_BEGIN

void shardwire_job_layout_free(shardwire_job_layout* job) {
  destroy(job);
}

shardwire_code shardwire_job_layout_create(int32_t ranks, shardwire_job_layout** job, shardwire_error** error) {
  return create(job, error, [&] {
    if (ranks < 0) refuse(fmt::format("a job of {} ranks", ranks));
    return JobDraft{ranks};
  });
}

shardwire_code shardwire_job_layout_add_section(shardwire_job_layout* job, const int32_t* ranks, size_t count,
                                                size_t* section, shardwire_error** error) {
  return give(section, error, [&] {
    JobDraft& draft = object(job, "job");
    draft.sections.push_back({sorted_ranks(array(ranks, count, "ranks"), draft.ranks), Manifest{draft.ranks, {}}});
    return draft.sections.size() - 1;
  });
}

shardwire_code shardwire_job_layout_add(shardwire_job_layout* job, size_t section, const shardwire_tensor* tensor,
                                        const shardwire_layout* layout, shardwire_error** error) {
  return guarded(error, [&] {
    manifest_of(job, section).tensors.push_back({spec_of(tensor), object(layout, "layout")});
  });
}

shardwire_code shardwire_job_layout_alias(shardwire_job_layout* job, size_t section, const char* alias, const char* fqn,
                                          shardwire_error** error) {
  return guarded(error, [&] {
    add_alias(manifest_of(job, section).aliases, {text(alias, "alias"), text(fqn, "fqn")});
  });
}

shardwire_code shardwire_job_layout_add_copy(shardwire_job_layout* job, int32_t rank, shardwire_error** error) {
  return guarded(error, [&] {
    JobDraft& draft = object(job, "job");
    if (rank < 0 || rank >= draft.ranks) refuse(fmt::format("a copy of rank {} of {}", rank, draft.ranks));
    draft.copies.push_back(rank);
  });
}

shardwire_code shardwire_job_layout_without(const shardwire_job_layout* job, const int32_t* lost, size_t count,
                                            shardwire_job_layout** result, shardwire_error** error) {
  return create(result, error,
                [&] { return draft_of(job_of(object(job, "job")).without(ranks(lost, count, "lost"))); });
}

int32_t shardwire_job_layout_rank_count(const shardwire_job_layout* job) {
  return job ? peek(job)->ranks : 0;
}

size_t shardwire_job_layout_section_count(const shardwire_job_layout* job) {
  return job ? peek(job)->sections.size() : 0;
}

const int32_t* shardwire_job_layout_ranks(const shardwire_job_layout* job, size_t section, size_t* count) {
  const JobDraft::Section* found = section_of(job, section);
  return data_of(found ? &found->ranks : nullptr, count);
}

const int32_t* shardwire_job_layout_copies(const shardwire_job_layout* job, size_t* count) {
  return data_of(job ? &peek(job)->copies : nullptr, count);
}

size_t shardwire_job_layout_tensor_count(const shardwire_job_layout* job, size_t section) {
  const JobDraft::Section* found = section_of(job, section);
  return found ? found->manifest.tensors.size() : 0;
}

shardwire_code shardwire_job_layout_tensor(const shardwire_job_layout* job, size_t section, size_t index,
                                           shardwire_tensor* tensor, const shardwire_layout** layout,
                                           shardwire_error** error) {
  return guarded(error, [&] {
    const auto& tensors = entry(object(job, "job").sections, section, "section").manifest.tensors;
    const TensorLayout& found = entry(tensors, index, "tensor");
    if (tensor) fill(tensor, tensor_of(found.spec), "tensor");
    if (layout) *layout = borrowed<shardwire_layout>(&found.layout);
  });
}

SHARDWIRE_C_END

}  // namespace shardwire::c_api
