// The paged KV cache: one anonymous mapping, planned before it is made.
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

int64_t kv_element_bytes(KvType type);

class KvCache {
 public:
  // Throws std::invalid_argument on a bad shape, std::bad_alloc when the mapping fails.
  KvCache(const std::vector<KvLayerShape>& layers, int64_t num_blocks, int64_t block_size,
          KvType type);
  ~KvCache();
  KvCache(const KvCache&) = delete;
  KvCache& operator=(const KvCache&) = delete;

  // Bytes of one block over all layers, scales included.
  static int64_t block_bytes(const std::vector<KvLayerShape>& layers, int64_t block_size,
                             KvType type);

  const KvLayer& layer(int64_t i) const { return layers_[static_cast<size_t>(i)]; }
  int64_t num_layers() const { return static_cast<int64_t>(layers_.size()); }
  int64_t num_blocks() const { return num_blocks_; }
  int64_t block_size() const { return block_size_; }
  KvType type() const { return type_; }
  int64_t bytes() const { return bytes_; }
  void* data() const { return base_; }

 private:
  int64_t num_blocks_;
  int64_t block_size_;
  KvType type_;
  int64_t bytes_ = 0;
  void* base_ = nullptr;
  std::vector<KvLayer> layers_;
};

}  // namespace edge_infer
