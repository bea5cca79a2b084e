"""Functions whose plans are pinned are not compiled for each call."""

from alembic import context

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    context.config.attributes["run_folder"](__file__)


def downgrade() -> None:
    context.config.attributes["run"](
        "do $$\n"
        "declare\n"
        "  v_function regprocedure;\n"
        "begin\n"
        "  for v_function in\n"
        "    select p.oid\n"
        "    from pg_catalog.pg_proc p\n"
        "    where p.pronamespace = '{schema}'::regnamespace and 'jit=off' = any (p.proconfig)\n"
        "  loop\n"
        "    execute format('alter function %s reset jit', v_function);\n"
        "  end loop;\n"
        "end\n"
        "$$"
    )
