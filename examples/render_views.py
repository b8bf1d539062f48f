"""Normal and depth maps of a mesh from six sides, on the CPU.

python examples/render_views.py [MESH.glb]
"""

import sys
from pathlib import Path

from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from examples.render import depth_map, draw, make_mesh, normal_map, read_mesh, six_views

mesh = read_mesh(sys.argv[1]) if len(sys.argv) > 1 else make_mesh("knot")
for view in six_views():
    seen = draw(mesh, view, (1024, 1024), rule="compat")
    Image.fromarray(normal_map(seen, "camera")).save(f"normal_{view.name}.png")
    Image.fromarray(depth_map(seen)).save(f"depth_{view.name}.png")
    sys.stdout.write(f"{view.name}: rasterised in {seen.raster_seconds * 1e3:.1f} ms\n")
