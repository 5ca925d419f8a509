#include "program/kv_cache.h"

#include <sys/mman.h>

#include <new>
#include <stdexcept>
#include <string>
#include <utility>

namespace edge_infer {
namespace {

constexpr int64_t kAlign = 64;

int64_t align_up(int64_t n) { return (n + kAlign - 1) / kAlign * kAlign; }

int64_t checked_mul(int64_t a, int64_t b) {
  int64_t r;
  if (__builtin_mul_overflow(a, b, &r)) {
    throw std::invalid_argument("KV cache: the requested size overflows 64 bits");
  }
  return r;
}

void check_shape(const std::vector<KvLayerShape>& layers, int64_t block_size) {
  if (layers.empty() || layers.size() > 4096) {
    throw std::invalid_argument("KV cache: the number of layers must be 1 to 4096, not " +
                                std::to_string(layers.size()));
  }
  if (block_size < 8 || block_size > 64 || (block_size & (block_size - 1)) != 0) {
    throw std::invalid_argument("KV cache: block_size must be 8, 16, 32 or 64, not " +
                                std::to_string(block_size));
  }
  for (const KvLayerShape& l : layers) {
    if (l.num_kv_heads < 1 || l.num_kv_heads > 4096 || l.head_dim < 8 || l.head_dim > 256 ||
        l.head_dim % 8 != 0) {
      throw std::invalid_argument(
          "KV cache: num_kv_heads must be 1 to 4096 and head_dim a multiple of 8 up to 256, not " +
          std::to_string(l.num_kv_heads) + " and " + std::to_string(l.head_dim));
    }
  }
}

// The group of each layer.
std::vector<int64_t> check_groups(const std::vector<KvGroup>& groups, size_t num_layers) {
  std::vector<int64_t> group_of(num_layers, -1);
  for (size_t g = 0; g < groups.size(); ++g) {
    if (groups[g].window < 0) throw std::invalid_argument("KV cache: negative window");
    if (groups[g].num_blocks < 1 || groups[g].num_blocks > INT32_MAX) {
      throw std::invalid_argument("KV cache: num_blocks must be 1 to 2^31 - 1, not " +
                                  std::to_string(groups[g].num_blocks));
    }
    for (int64_t layer : groups[g].layers) {
      if (layer < 0 || layer >= static_cast<int64_t>(num_layers) ||
          group_of[static_cast<size_t>(layer)] >= 0) {
        throw std::invalid_argument("KV cache: layer " + std::to_string(layer) +
                                    " does not exist or is in two groups");
      }
      group_of[static_cast<size_t>(layer)] = static_cast<int64_t>(g);
    }
  }
  for (size_t layer = 0; layer < num_layers; ++layer) {
    if (group_of[layer] < 0) {
      throw std::invalid_argument("KV cache: layer " + std::to_string(layer) + " is in no group");
    }
  }
  return group_of;
}

// Bytes of one of K or V of one layer, and of its scales.
int64_t side_bytes(const KvLayerShape& l, int64_t num_blocks, int64_t block_size, KvType type) {
  return checked_mul(checked_mul(num_blocks, l.num_kv_heads),
                     block_size * l.head_dim * kv_element_bytes(type));
}

int64_t scale_bytes(const KvLayerShape& l, int64_t num_blocks, int64_t block_size, KvType type) {
  if (type != KvType::kInt8) return 0;
  return checked_mul(checked_mul(num_blocks, l.num_kv_heads), block_size * 4);
}

}  // namespace

int64_t kv_element_bytes(KvType type) {
  switch (type) {
    case KvType::kF32: return 4;
    case KvType::kF16:
    case KvType::kBF16: return 2;
    case KvType::kInt8: return 1;
  }
  return 0;
}

int64_t KvCache::block_bytes(const std::vector<KvLayerShape>& layers, int64_t block_size,
                             KvType type) {
  check_shape(layers, block_size);
  int64_t total = 0;
  for (const KvLayerShape& l : layers) {
    total += 2 * (side_bytes(l, 1, block_size, type) + scale_bytes(l, 1, block_size, type));
  }
  return total;
}

KvCache::KvCache(const std::vector<KvLayerShape>& layers, std::vector<KvGroup> groups,
                 int64_t block_size, KvType type)
    : groups_(std::move(groups)), block_size_(block_size), type_(type) {
  check_shape(layers, block_size);
  layer_groups_ = check_groups(groups_, layers.size());
  const auto blocks_of = [this](size_t layer) { return group(layer_groups_[layer]).num_blocks; };
  for (size_t i = 0; i < layers.size(); ++i) {
    const KvLayerShape& l = layers[i];
    const int64_t num_blocks = blocks_of(i);
    const int64_t side = align_up(side_bytes(l, num_blocks, block_size, type)) +
                         align_up(scale_bytes(l, num_blocks, block_size, type));
    if (__builtin_add_overflow(bytes_, checked_mul(2, side), &bytes_)) {
      throw std::invalid_argument("KV cache: the requested size overflows 64 bits");
    }
  }
  base_ = mmap(nullptr, static_cast<size_t>(bytes_), PROT_READ | PROT_WRITE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base_ == MAP_FAILED) throw std::bad_alloc();
  char* p = static_cast<char*>(base_);
  const auto take = [&p](int64_t bytes) -> void* {
    void* start = bytes == 0 ? nullptr : p;
    p += align_up(bytes);
    return start;
  };
  for (size_t i = 0; i < layers.size(); ++i) {
    const KvLayerShape& l = layers[i];
    const int64_t num_blocks = blocks_of(i);
    KvLayer layer{};
    layer.type = type;
    layer.block_size = block_size;
    layer.num_kv_heads = l.num_kv_heads;
    layer.head_dim = l.head_dim;
    layer.k = take(side_bytes(l, num_blocks, block_size, type));
    layer.v = take(side_bytes(l, num_blocks, block_size, type));
    layer.k_scales = static_cast<float*>(take(scale_bytes(l, num_blocks, block_size, type)));
    layer.v_scales = static_cast<float*>(take(scale_bytes(l, num_blocks, block_size, type)));
    layers_.push_back(layer);
  }
}

KvCache::~KvCache() { munmap(base_, static_cast<size_t>(bytes_)); }

}  // namespace edge_infer
