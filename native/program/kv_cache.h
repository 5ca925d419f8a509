// The paged KV cache: one anonymous mapping, planned before it is made. Layers with the same
// window form a group; blocks are numbered per group, and a sequence has a table for each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/types.h"

namespace edge_infer {

struct KvLayerShape {
  int64_t num_kv_heads;
  int64_t head_dim;
};

struct KvGroup {
  int64_t window;  // positions that a token sees, itself included; 0 for all
  int64_t num_blocks;
  std::vector<int64_t> layers;

  // The first position that a token at `position` sees.
  int64_t first_visible(int64_t position) const {
    return window > 0 && position >= window ? position - window + 1 : 0;
  }
};

int64_t kv_element_bytes(KvType type);

class KvCache {
 public:
  // Every layer is in one group. Throws std::invalid_argument on a bad shape, std::bad_alloc when
  // the mapping fails.
  KvCache(const std::vector<KvLayerShape>& layers, std::vector<KvGroup> groups, int64_t block_size,
          KvType type);
  ~KvCache();
  KvCache(const KvCache&) = delete;
  KvCache& operator=(const KvCache&) = delete;

  // Bytes of one block over these layers, scales included.
  static int64_t block_bytes(const std::vector<KvLayerShape>& layers, int64_t block_size,
                             KvType type);

  const KvLayer& layer(int64_t i) const { return layers_[static_cast<size_t>(i)]; }
  int64_t num_layers() const { return static_cast<int64_t>(layers_.size()); }
  int64_t num_groups() const { return static_cast<int64_t>(groups_.size()); }
  const KvGroup& group(int64_t i) const { return groups_[static_cast<size_t>(i)]; }
  int64_t group_of(int64_t layer) const { return layer_groups_[static_cast<size_t>(layer)]; }
  int64_t block_size() const { return block_size_; }
  KvType type() const { return type_; }
  int64_t bytes() const { return bytes_; }
  void* data() const { return base_; }

 private:
  std::vector<KvGroup> groups_;
  std::vector<int64_t> layer_groups_;
  int64_t block_size_;
  KvType type_;
  int64_t bytes_ = 0;
  void* base_ = nullptr;
  std::vector<KvLayer> layers_;
};

}  // namespace edge_infer
