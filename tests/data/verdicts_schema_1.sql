-- Written by the first version of the store (5af5f0d3, 2026-11-21). The marker is of a boot that is over.
BEGIN TRANSACTION;
CREATE TABLE records (op TEXT NOT NULL, shape TEXT NOT NULL, dtype TEXT NOT NULL, layout TEXT NOT NULL, architecture TEXT NOT NULL, driver TEXT NOT NULL, torch TEXT NOT NULL, vendor TEXT NOT NULL, ours TEXT NOT NULL, tier TEXT NOT NULL, verdict TEXT NOT NULL,
        seconds REAL, peak_bytes INTEGER, first_seconds REAL, detail TEXT NOT NULL,
        "when" REAL NOT NULL, measured_by TEXT NOT NULL,
        PRIMARY KEY (op, shape, dtype, layout, architecture, driver, torch, vendor, ours, tier)) WITHOUT ROWID;
INSERT INTO "records" VALUES('conv3d','1x8x5x1x16 w8x8x3x3x3 p1x1x1','bf16','contiguous','gfx1100','amdgpu 6.10.5','2.9.0+rocm6.4','hip 6.4, miopen 3.4.0','0.1.0','triton','ok',0.0012,1048576,3.5,'tile 128x128x64w4s3g8',1760000001.0,'tune');
INSERT INTO "records" VALUES('conv3d','1x8x5x1x16 w8x8x3x3x3 p1x1x1','bf16','contiguous','gfx1100','amdgpu 6.10.5','2.9.0+rocm6.4','hip 6.4, miopen 3.4.0','0.1.0','vendor','hang',NULL,NULL,NULL,'killed after 30 s',1760000000.0,'probe');
INSERT INTO "records" VALUES('conv3d','1x8x5x2x16 w8x8x3x3x3 p1x1x1','bf16','contiguous','gfx1100','amdgpu 6.10.5','2.9.0+rocm6.4','hip 6.4, miopen 3.4.0','0.1.0','gemm','error',NULL,NULL,NULL,'naïve text',1760000002.0,'decode');
INSERT INTO "records" VALUES('conv3d','1x8x5x3x16 w8x8x3x3x3 p1x1x1 replicate/zeros/zeros','bf16','contiguous','gfx1100','amdgpu 6.10.5','2.9.0+rocm6.4','hip 6.4, miopen 3.4.0','0.1.0','vendor','slow-find',0.5,NULL,40.0,'',1760000003.0,'passing');
CREATE TABLE trying (token TEXT PRIMARY KEY, op TEXT NOT NULL, shape TEXT NOT NULL, dtype TEXT NOT NULL, layout TEXT NOT NULL, architecture TEXT NOT NULL, driver TEXT NOT NULL, torch TEXT NOT NULL, vendor TEXT NOT NULL, ours TEXT NOT NULL, tier TEXT NOT NULL,
        "when" REAL NOT NULL, pid INTEGER NOT NULL, start TEXT NOT NULL, boot TEXT NOT NULL,
        numbering TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO "trying" VALUES('00000000000000aa','conv3d','1x8x5x4x16 w8x8x3x3x3 p1x1x1','bf16','contiguous','gfx1100','amdgpu 6.10.5','2.9.0+rocm6.4','hip 6.4, miopen 3.4.0','0.1.0','vendor',1760000004.0,4711,'100','an earlier boot','pid:[1]');
CREATE INDEX records_by_age ON records ("when");
PRAGMA application_id = 1752773476;
PRAGMA user_version = 1;
COMMIT;
