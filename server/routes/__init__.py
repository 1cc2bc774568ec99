"""HTTP routes: each module builds one `APIRouter` over the shared `Service`."""
